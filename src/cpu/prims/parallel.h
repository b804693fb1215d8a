// Threads of the CPU backend.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace dlkern::cpu {

int num_threads();  // set by dlk_set_num_threads

// f(begin, end) over disjoint parts of [0, n), in parallel where each part gets at least `grain`
// items. The parts depend on n, grain and the number of threads only; f must compute each item the
// same way whichever part it lies in, so that results do not depend on the number of threads.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  const int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, num_threads());
  if (parts == 1 || omp_in_parallel()) {
    f(int64_t{0}, n);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    try {
      f(n * part / parts, n * (part + 1) / parts);
    } catch (...) {
#pragma omp critical(dlkern_parallel_for)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace dlkern::cpu
