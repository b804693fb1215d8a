// Dropout on the CPU: spans in parallel; the random bits of a contiguous span come from a vectorised
// Philox, 4 elements a block.
#include "ops/dropout.h"

#include "core/philox.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

struct Stream {
  uint64_t seed, offset;
};

// bits[k] = random bits of element first + k, k < n <= kSpan.
void random_bits(Stream stream, int64_t first, int64_t n, uint32_t* bits) {
  constexpr int64_t kBlocks = kSpan / 4 + 1;
  uint32_t words[4 * kBlocks];
  const int64_t skip = first % 4, first_block = first / 4, blocks = ceil_div(skip + n, 4);
  DLK_SIMD for (int64_t b = 0; b < blocks; ++b) {
    const PhiloxWords w =
        philox(static_cast<uint64_t>(first_block + b), stream.offset, stream.seed);
    for (int k = 0; k < 4; ++k) words[4 * b + k] = w.v[k];
  }
  std::copy_n(words + skip, n, bits);
}

template <class Acc>
void dropout_span(int64_t n, Acc* y, const Acc* x, const uint32_t* bits, DropoutRule<Acc> rule) {
  DLK_SIMD for (int64_t i = 0; i < n; ++i) y[i] = rule(x[i], bits[i]);
}

template <class T>
void dropout(const Dropout& p) {
  using Acc = Accumulator<T>;
  const uint64_t* rng = p.rng.as<uint64_t>();
  const Stream stream{rng[0], rng[p.rng.strides[0]]};
  const DropoutRule<Acc> rule(p.p);
  const Tensor positions = row_major(p.y);
  map_spans(
      in_memory_order(make_index<3>({&p.y, &p.x, &positions})),
      [&](int64_t n, Acc* y, const Acc* x, Position::Value at) {
        uint32_t bits[kSpan];
        if (at.stride == 1) {
          random_bits(stream, at.first, n, bits);
        } else {
          for (int64_t k = 0; k < n; ++k) {
            random_bits(stream, at.first + k * at.stride, 1, bits + k);
          }
        }
        dropout_span(n, y, x, bits, rule);
      },
      Out<T>{p.y.as<T>()}, In<T>{p.x.as<T>()}, Position{});
}

constexpr Impl<Dropout> kImpls[] = {
    {"cpu_spans", supports_all, nullptr,
     [](const Dropout& p, const Launch&) {
       dispatch_floating(p.x.dtype, [&]<class T>() { dropout<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<Dropout> cpu_impls<Dropout>() {
  return kImpls;
}

}  // namespace dlkern
