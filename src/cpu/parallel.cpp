#include "cpu/prims/parallel.h"

#include <dlkern/core.h>
#include <pthread.h>

#include <atomic>

#include "core/status.h"

namespace dlkern::cpu {
namespace {

// GNU OpenMP's worker threads do not survive fork(): a child of a process that has used them would
// wait for them for ever. Such a child computes on one thread.
std::atomic<bool> forked{false};

std::atomic<int>& requested() {
  static std::atomic<int> n = [] {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return omp_get_max_threads();
  }();
  return n;
}

}  // namespace

int num_threads() { return forked.load(std::memory_order_relaxed) ? 1 : requested().load(); }

}  // namespace dlkern::cpu

int dlk_get_num_threads(void) { return dlkern::cpu::num_threads(); }

dlk_status_t dlk_set_num_threads(int n) {
  if (n < 1) {
    const std::string message = dlkern::cat("n is ", n, ", expected at least 1");
    return dlkern::set_last_error(DLK_INVALID_ARGUMENT, "set_num_threads", message.c_str());
  }
  dlkern::cpu::requested() = n;
  return DLK_SUCCESS;
}
