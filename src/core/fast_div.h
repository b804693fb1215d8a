// Division by a number that is known before a kernel starts: a multiplication and a shift.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace dlkern {

// n / d for d >= 1; an extent of 0, along which nothing is divided, is taken as 1. Quick for
// 0 <= n < 2^31 and d < 2^31; right for all others too.
//
// With l = ceil(log2 d) and m = ceil(2^(31 + l) / d), which fits in 32 bits: m d exceeds 2^(31 + l)
// by less than d <= 2^l, so n m / 2^(31 + l) exceeds n / d by less than 1 / d for all n < 2^31.
class FastDiv {
 public:
  FastDiv() : divisor_(1), multiplier_(1u << 31) {}
  explicit FastDiv(int64_t divisor) : divisor_(divisor > 0 ? divisor : 1) {
    if (divisor_ >> 31) return;
    while (int64_t{1} << (shift_ - 31) < divisor_) ++shift_;
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + divisor_ - 1) / divisor_);
  }

  DLK_HD int64_t divisor() const { return divisor_; }
  DLK_HD int64_t operator()(int64_t n) const {
    if ((n >> 31) == 0 && multiplier_ != 0) {
      return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier_) >> shift_);
    }
    return n / divisor_;
  }
  // The same for 0 <= n < 2^31 and d < 2^31 only: two instructions.
  DLK_HD int32_t quick(int32_t n) const {
    return static_cast<int32_t>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier_) >>
                                shift_);
  }
  // Either, by the type of n.
  template <class I>
  DLK_HD I of(I n) const {
    if constexpr (sizeof(I) == 4) {
      return quick(n);
    } else {
      return (*this)(n);
    }
  }
  // The quotient; n becomes the remainder.
  DLK_HD int64_t divide(int64_t& n) const {
    const int64_t quotient = (*this)(n);
    n -= quotient * divisor_;
    return quotient;
  }

 private:
  int64_t divisor_;
  uint32_t multiplier_ = 0, shift_ = 31;
};

}  // namespace dlkern
