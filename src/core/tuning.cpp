#include "core/tuning.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "core/call.h"

namespace dlkern {
namespace tuning {

struct Table {
  std::map<std::string, std::string, std::less<>> choices;
};

namespace {

// Tables are never changed, but replaced. Not destroyed at exit: other threads may still compute.
struct Current {
  std::shared_mutex mutex;
  std::shared_ptr<const Table> table;
  std::mutex writers;
};

Current& current() {
  static Current* instance = new Current;
  return *instance;
}

constinit std::atomic<bool> tuned_at_all = false;  // the present table has entries
constinit thread_local const Table* pinned = nullptr;

std::shared_ptr<const Table> present() {
  if (!tuned_at_all.load(std::memory_order_acquire)) return nullptr;
  const std::shared_lock lock(current().mutex);
  return current().table;
}

void set(const char* key, const char* choice) {
  if (key && !*key) fail(DLK_INVALID_ARGUMENT, "key is empty");
  if (choice && !*choice) fail(DLK_INVALID_ARGUMENT, "choice is empty");
  if (choice && !key) fail(DLK_INVALID_ARGUMENT, "key is NULL, expected the one of the choice");
  const std::lock_guard writing(current().writers);
  auto table = std::make_shared<Table>();
  const std::shared_ptr<const Table> before = present();
  if (key && before) table->choices = before->choices;
  if (choice) {
    table->choices.insert_or_assign(key, choice);
  } else if (key) {
    table->choices.erase(key);
  }
  const bool any = !table->choices.empty();
  const std::unique_lock lock(current().mutex);
  current().table = any ? std::move(table) : nullptr;
  tuned_at_all.store(any, std::memory_order_release);
}

}  // namespace

Pin::Pin() : table_(present()), previous_(pinned) { pinned = table_.get(); }
Pin::~Pin() { pinned = previous_; }

bool any() { return pinned != nullptr; }

}  // namespace tuning

std::string_view tuned(std::string_view key) {
  if (!tuning::pinned) return {};
  const auto found = tuning::pinned->choices.find(key);
  return found == tuning::pinned->choices.end() ? std::string_view() : found->second;
}

}  // namespace dlkern

dlk_status_t dlk_set_tuning(const char* key, const char* choice) {
  return dlkern::guarded("set_tuning", [&] { dlkern::tuning::set(key, choice); });
}

dlk_status_t dlk_get_tuning(const char* key, char* choice, size_t choice_bytes) {
  return dlkern::guarded("get_tuning", [&] {
    if (!key) dlkern::fail(DLK_INVALID_ARGUMENT, "key is NULL");
    const dlkern::tuning::Pin pin;
    const std::string_view found = dlkern::tuned(key);
    if (!choice || choice_bytes <= found.size()) {
      dlkern::fail(DLK_INVALID_ARGUMENT, "choice_bytes is ", choice ? choice_bytes : 0,
                   ", expected at least ", found.size() + 1);
    }
    if (!found.empty()) std::memcpy(choice, found.data(), found.size());
    choice[found.size()] = '\0';
  });
}
