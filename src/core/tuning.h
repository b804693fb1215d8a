// Choices of configuration that override a kernel's own: set by dlk_set_tuning(), one table for the
// process, safe from any thread.
//
// A choice is a hint. A kernel looks it up wherever it needs its configuration (supports,
// workspace_bytes, run) and ignores a name that it does not know or that does not suit the problem:
// whatever is in the table, results are right. Batch-invariant kernels do not look.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>

namespace dlkern {

// What an implementation could be tuned to for one problem.
struct Candidates {
  std::string key;    // of the problem, architecture included: "gemm_sm90 bfloat16 m64 ..."
  std::string names;  // '\n'-separated, best guess first

  void add(std::string_view name) {
    if (!names.empty()) names += '\n';
    names += name;
  }
};

namespace tuning {

struct Table;

// One call sees one table, so that the workspace it asked for fits what it runs: Call::run keeps the
// present one for this thread. As long as nothing has been tuned this costs one load.
class Pin {
 public:
  Pin();
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  std::shared_ptr<const Table> table_;
  const Table* previous_;
};

bool any();  // the pinned table has entries

}  // namespace tuning

// Inside a call: the choice for this key, valid until the call ends; "" where there is none.
std::string_view tuned(std::string_view key);

// The same, with the key not even made as long as nothing has been tuned.
template <std::invocable MakeKey>
std::string_view tuned(MakeKey&& make_key) {
  return tuning::any() ? tuned(std::string_view(make_key())) : std::string_view();
}

}  // namespace dlkern
