// Convolution on Hopper: the matrix products of gemm_sm90.cuh with an operand that the copy engine
// reads from the image as it goes (im2col), so that it is nowhere built.
//
//   kColumnsA   y[pixel, n] = sum_(tap, c) image[pixel, tap, c] w[n, tap, c]
//               forward, and the input gradient, whose image is dy and whose taps run the other way
//   kColumnsB   dw[m, (tap, c)] = sum_pixel dy[pixel, m] image[pixel, tap, c]
//
// Images are channels last. A stage is 64 channels of one tap (32 of float32), or 64 pixels; what is
// beyond the channels is zeros. Weights are a tensor map {c, k, tap, group}; groups are items of a
// batch. Bfloat16 planes of float32 are further channels, of images and weights.
#pragma once

#include "cuda/conv_sm90.h"
#include "cuda/gemm_sm90.cuh"

namespace dlkern::gpu {

__device__ __forceinline__ void load_columns(uint8_t* to, const CUtensorMap& map, Barrier* full,
                                             bool has_d, const int (&at)[5],
                                             const uint16_t (&offset)[3]) {
  if (has_d) {
    tma_load_im2col(to, &map, full, at, offset);
  } else {
    const int at4[4] = {at[0], at[1], at[2], at[3]};
    const uint16_t offset2[2] = {offset[0], offset[1]};
    tma_load_im2col(to, &map, full, at4, offset2);
  }
}

template <class T>
class Sm90Loader<T, Sm90Operands::kColumnsA> {
  using Share = Sm90Share<T>;
  static_assert(!Share::kA);

 public:
  __device__ Sm90Loader(const Sm90ConvArgs& args, const CUtensorMap& map_a,
                        const CUtensorMap& map_b, const Sm90Tile& t, uint32_t rank)
      : columns_(args.columns), map_a_(map_a), map_b_(map_b), tile_(t), share_(rank) {
    columns_.pixels.place(t.m, at_);
    first_channel_ = columns_.has_taps ? t.item * columns_.channels : columns_.no_channel;
  }
  __device__ void load(const Sm90Shared<T>& shared, int stage, int) {
    Barrier* full = &shared.full[stage];
    const Sm90Taps::At tap = columns_.taps.at(index_);
    for (int plane = 0; plane < T::C.planes; ++plane) {
      at_[0] = first_channel_ + channel_ + plane * columns_.plane;
      load_columns(shared.a(stage, plane), map_a_, full, columns_.pixels.has_d, at_, tap.offset);
      load_operand<T::kBAlongK, Share::kB>(shared.b(stage, plane) + share_.row_b * kSwizzleBytes,
                                           map_b_, full, tile_.n + share_.row_b, Share::kRowsB,
                                           channel_ + plane * columns_.weights_plane, tap.tap,
                                           tile_.item);
    }
  }
  // Channels, then taps.
  __device__ void advance() {
    channel_ += T::kDepth;
    if (channel_ < columns_.channels) return;
    channel_ = 0;
    for (int d = 0; d < 3; ++d) {
      if (++index_[d] < columns_.taps.count[d]) return;
      index_[d] = 0;
    }
  }

 private:
  const Sm90Columns& columns_;
  const CUtensorMap &map_a_, &map_b_;
  const Sm90Tile& tile_;
  Share share_;
  int at_[5];
  int first_channel_, channel_ = 0, index_[3] = {};
};

template <class T>
class Sm90Loader<T, Sm90Operands::kColumnsB> {
  using Share = Sm90Share<T>;
  static constexpr int kChunks = T::C.n / 64;
  static_assert(!Share::kB && T::kDepth == 64 && !T::kAAlongK && !T::kBAlongK);

 public:
  __device__ Sm90Loader(const Sm90ConvArgs& args, const CUtensorMap& map_a,
                        const CUtensorMap& map_b, const Sm90Tile& t, uint32_t rank)
      : columns_(args.columns), map_a_(map_a), map_b_(map_b), tile_(t), share_(rank) {
    const Sm90Taps& taps = columns_.taps;
    const int per_tap = static_cast<int>(columns_.chunks.divisor());
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int number = t.n / 64 + i, tap = columns_.chunks.quick(number);
      const int index[3] = {tap % taps.count[0], tap / taps.count[0] % taps.count[1],
                            tap / (taps.count[0] * taps.count[1])};
      tap_[i] = taps.at(index);
      channel_[i] = t.item * columns_.channels + (number - tap * per_tap) * 64;
      if (index[2] >= taps.count[2]) channel_[i] = columns_.no_channel;  // beyond the last tap
    }
  }
  __device__ void load(const Sm90Shared<T>& shared, int stage, int block) const {
    Barrier* full = &shared.full[stage];
    const int pixel = block * T::kDepth;
    int at[5];
    columns_.pixels.place(pixel, at);
    for (int plane = 0; plane < T::C.planes; ++plane) {
      load_operand<false, Share::kA>(shared.a(stage, plane) + share_.row_a * kSwizzleBytes, map_a_,
                                     full, tile_.m + share_.row_a, Share::kRowsA, pixel, tile_.item,
                                     plane);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        at[0] = channel_[i] + plane * columns_.plane;
        load_columns(shared.b(stage, plane) + i * 64 * kSwizzleBytes, map_b_, full,
                     columns_.pixels.has_d, at, tap_[i].offset);
      }
    }
  }
  __device__ void advance() {}

 private:
  const Sm90Columns& columns_;
  const CUtensorMap &map_a_, &map_b_;
  const Sm90Tile& tile_;
  Share share_;
  int channel_[kChunks];
  Sm90Taps::At tap_[kChunks];
};

template <Mma kMma, int kConfig, bool kWeightsAlongK>
Sm90Kernel make_sm90_conv_kernel() {
  constexpr bool kImages = kConfig < kSm90ConvImageConfigs;
  return sm90_kernel<
      Sm90Traits<kMma, kSm90ConvConfigs[kConfig], kImages, kImages && kWeightsAlongK,
                 kImages ? Sm90Operands::kColumnsA : Sm90Operands::kColumnsB, Sm90ConvArgs>>();
}

// Of 16-bit types, which wgmma takes either way.
template <Mma kMma>
Sm90Kernel conv_kernel_of_16_bits(int config, bool weights_along_k) {
  switch (config) {
    case 0:
      return weights_along_k ? make_sm90_conv_kernel<kMma, 0, true>()
                             : make_sm90_conv_kernel<kMma, 0, false>();
    case 1:
      return weights_along_k ? make_sm90_conv_kernel<kMma, 1, true>()
                             : make_sm90_conv_kernel<kMma, 1, false>();
    case 2:
      return weights_along_k ? make_sm90_conv_kernel<kMma, 2, true>()
                             : make_sm90_conv_kernel<kMma, 2, false>();
    case 3:
      return make_sm90_conv_kernel<kMma, 3, false>();
    case 4:
      return make_sm90_conv_kernel<kMma, 4, false>();
    case 5:
      return make_sm90_conv_kernel<kMma, 5, false>();
    default:
      return {};
  }
}

}  // namespace dlkern::gpu
