// Philox4x32-10, a counter-based random number generator: 128 random bits from a 128-bit counter
// and a 64-bit key, with no state, so that any element's bits can be had in any order.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace dlkern {

struct PhiloxWords {
  uint32_t v[4];
};

// The product's upper and lower words.
DLK_HD constexpr void multiply_wide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    asm("{ .reg .b64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p; }"
        : "=r"(low), "=r"(high)
        : "r"(a), "r"(b));
    return;
  }
#endif
  const uint64_t product = uint64_t{a} * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

DLK_HD constexpr PhiloxWords philox(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high);
  uint32_t c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t high0 = 0, low0 = 0, high1 = 0, low1 = 0;
    multiply_wide(0xD2511F53u, c0, high0, low0);
    multiply_wide(0xCD9E8D57u, c2, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The known answers that Random123 publishes.
static_assert(philox(0, 0, 0).v[0] == 0x6627e8d5u && philox(0, 0, 0).v[3] == 0x9b00dbd8u);
static_assert(philox(~0ull, ~0ull, ~0ull).v[1] == 0x41c83b0eu &&
              philox(~0ull, ~0ull, ~0ull).v[2] == 0xa20bc7c6u);
static_assert(philox(0x85a308d3243f6a88u, 0x0370734413198a2eu, 0x299f31d0a4093822u).v[0] ==
                  0xd16cfe09u &&
              philox(0x85a308d3243f6a88u, 0x0370734413198a2eu, 0x299f31d0a4093822u).v[3] ==
                  0x24126ea1u);

}  // namespace dlkern
