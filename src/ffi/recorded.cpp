#include "ffi/recorded.h"

#include "ffi/arguments.h"
#include "ffi/replay.h"

namespace dlkern::ffi {
namespace {

struct LastRecord {
  std::vector<uint8_t> bytes;
  std::vector<void*> data;
  dlk_record view{};
};
thread_local LastRecord last;

// f with f's own type, which leaves a record of plan-only calls.
template <auto function>
struct Recorder;

template <class... Args, dlk_status_t (*function)(Args...)>
struct Recorder<function> {
  template <const char* name>
  static dlk_status_t call(Args... args) {
    const dlk_status_t status = function(args...);
    const dlk_launch* launch = std::get<sizeof...(Args) - 1>(std::tie(args...));
    if (status == DLK_SUCCESS && launch && launch->flags & DLK_LAUNCH_PLAN_ONLY) {
      Writer out;
      (out.write(args), ...);
      last.bytes = out.bytes();
      last.data = out.data();
      last.view = {name, last.bytes.data(), last.bytes.size(), last.data.data(), last.data.size()};
    }
    return status;
  }
};

template <auto function, const char* name>
constexpr auto recorded() {
  if constexpr (Function<function>::is_recordable) {
    return &Recorder<function>::template call<name>;
  } else {
    return function;
  }
}

template <auto function>
constexpr Replay* replay_of() {
  if constexpr (Function<function>::is_recordable) {
    return &Function<function>::replay;
  } else {
    return nullptr;
  }
}

struct Entry {
  std::string_view name;
  Replay* replay;
};
#define DLK_ENTRY(name) {#name, replay_of<&::name>()},
constexpr Entry kEntries[] = {DLK_FUNCTIONS(DLK_ENTRY)};

}  // namespace

Replay* find_replay(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.replay;
  }
  return nullptr;
}

}  // namespace dlkern::ffi

#define DLK_DEFINE(name)                          \
  static constexpr char name_of_##name[] = #name; \
  decltype(&name) recorded_##name = dlkern::ffi::recorded<&name, name_of_##name>();
DLK_FUNCTIONS(DLK_DEFINE)

const dlk_record* dlk_last_record() { return &dlkern::ffi::last.view; }

dlk_status_t dlk_plan_record(const dlk_record* record, DLDevice device, size_t* workspace_bytes) {
  using namespace dlkern::ffi;
  Reader in(record->bytes, record->size);
  for (uint32_t i = 0; i < in.count(); ++i) in.place(i, record->data[i], device);
  dlk_launch launch = DLK_LAUNCH_INIT;
  launch.flags = DLK_LAUNCH_PLAN_ONLY;
  const dlk_status_t status = find_replay(record->function)(in, &launch);
  if (status != DLK_SUCCESS) return status;
  dlk_plan plan{};
  plan.struct_size = sizeof plan;
  dlk_explain_last(&plan);
  *workspace_bytes = plan.workspace_bytes;
  return DLK_SUCCESS;
}
