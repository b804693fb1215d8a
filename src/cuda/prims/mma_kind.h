// The kinds of operands that Hopper's tensor cores multiply, for host and device.
#pragma once

namespace dlkern::gpu {

enum class Mma { kBFloat16, kFloat16, kTf32, kE4M3, kE4M3E5M2, kE5M2E4M3, kE5M2, kInt8 };

constexpr bool is_16_bit(Mma mma) { return mma == Mma::kBFloat16 || mma == Mma::kFloat16; }
constexpr int element_bytes(Mma mma) { return is_16_bit(mma) ? 2 : mma == Mma::kTf32 ? 4 : 1; }

inline constexpr int kSwizzleBytes = 128;  // a row of an operand in shared memory

}  // namespace dlkern::gpu
