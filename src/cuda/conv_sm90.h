// What the host and the kernels of Hopper's convolutions share: arguments beside those of a matrix
// product. Extents and positions of spatial dimensions are in the order of tensor maps: w, h, d.
#pragma once

#include <cstdint>

#include "cuda/gemm_sm90.h"
#include "ops/conv.h"

namespace dlkern {

// The pixels of a batch of images, counted as one in the order n, d, h, w, and where each is in an
// image that is seen in steps, from `lower` on. A tensor map of rank 4 has no d.
struct Sm90Pixels {
  FastDiv extent[3];
  int lower[3] = {}, step[3] = {1, 1, 1};
  bool has_d = false;

  // Coordinates 1 to rank - 1 of a copy.
  DLK_HD void place(int pixel, int (&at)[5]) const {
    int rest = extent[0].quick(pixel);
    at[1] = lower[0] + (pixel - rest * static_cast<int>(extent[0].divisor())) * step[0];
    int n = extent[1].quick(rest);
    at[2] = lower[1] + (rest - n * static_cast<int>(extent[1].divisor())) * step[1];
    at[3] = n;
    if (has_d) {
      at[4] = extent[2].quick(n);
      at[3] = lower[2] + (n - at[4] * static_cast<int>(extent[2].divisor())) * step[2];
    }
  }
};

// Taps of a filter, in the order in which they are summed: w, then h, then d. Those of a strided input
// gradient are some of the filter's, in steps.
struct Sm90Taps {
  int count[3] = {1, 1, 1};
  int offset[3] = {};           // of neighbouring taps, in the image
  int first = 0, step[3] = {};  // where they are among the filter's

  struct At {
    uint16_t offset[3];
    int tap;  // of the filter
  };
  DLK_HD At at(const int (&index)[3]) const {
    At at{{}, first};
    for (int d = 0; d < 3; ++d) {
      at.offset[d] = static_cast<uint16_t>(index[d] * offset[d]);
      at.tap += index[d] * step[d];
    }
    return at;
  }
};

// The image whose columns are an operand.
struct Sm90Columns {
  Sm90Pixels pixels;
  Sm90Taps taps;
  int channels = 0;      // of a group
  int no_channel = 0;    // beyond the last one, where zeros are read; at a multiple of 128 bytes
  bool has_taps = true;  // kColumnsA: else all sums are zero
  FastDiv chunks{1};     // kColumnsB: of 64 channels, in a group
  // Planes: channels from one to the next, here and in kColumnsA's weights.
  int plane = 0, weights_plane = 0;
};

// A float32 image that is written element by element, wherever these are. Spatial dimensions as above.
struct Sm90Elements {
  float* data = nullptr;
  int64_t n = 0, channel = 0, group = 0, spatial[3] = {};  // strides
  bool in_pairs = false;  // of neighbouring channels: 8 bytes, aligned

  DLK_HD float* at(const Sm90Pixels& pixels, int pixel) const {
    int at[5];
    pixels.place(pixel, at);
    float* to = data + at[1] * spatial[0] + at[2] * spatial[1];
    return pixels.has_d ? to + at[3] * spatial[2] + at[4] * n : to + at[3] * n;
  }
};

// A result of 16 bits whose channels each have their pixels beside each other. `unit` of them are stored
// at once: 8, 4, 2 or 1; an image's pixels and all strides are multiples of it. 0: it is none such.
struct Sm90ByChannel {
  int unit = 0;
  uint16_t* y = nullptr;
  int64_t group = 0, c = 0, n = 0;  // strides
  FastDiv pixels;                   // of an image
};

struct Sm90ConvArgs : Sm90Args {
  Sm90Columns columns;
  // kColumnsA: how the result leaves, if its pixels are no rows of a matrix.
  bool scatters = false;
  Sm90Pixels result;
  Sm90Elements elements;           // kColumnsA of planes: the result
  Sm90ByChannel by_channel;        // kColumnsA
  int result_channels = 0;         // of a group, also where it does not scatter
  const float* factors = nullptr;  // kFactors, of all groups' channels; at a multiple of 8 bytes
  // kMoments: for every kSm90MomentsRows rows, the last of which may be fewer, mean and sum of squared deviations of
  // all columns of all groups.
  float2* moments = nullptr;
  int moments_columns = 0;
};

// ---- Configurations ----------------------------------------------------------------------------

// clang-format off
inline constexpr Sm90Config kSm90ConvConfigs[] = {
    // Images by weights: kColumnsA.
    {.m = 128, .n = 256, .stages = 4, .consumers = 2, .multicast = 2},
    {.m = 128, .n = 128, .stages = 6, .consumers = 2, .ping_pong = true},
    {.m = 128, .n = 64, .stages = 8, .consumers = 2, .ping_pong = true},
    // Gradients of weights: kColumnsB.
    {.m = 128, .n = 192, .stages = 4, .consumers = 2, .multicast = 2, .share_a = true},
    {.m = 64, .n = 192, .stages = 6, .consumers = 1},
    {.m = 128, .n = 256, .stages = 4, .consumers = 2},
};
// clang-format on
inline constexpr int kSm90ConvImageConfigs = 3, kSm90ConvConfigCount = 6;

// float32 as bfloat16 planes: three, or two for tf32.
struct Sm90PlaneConfig {
  Sm90Config tile;
  bool of_weights;  // kColumnsB
};
// clang-format off
inline constexpr Sm90PlaneConfig kSm90PlaneConfigs[] = {
    {{.m = 128, .n = 128, .stages = 2, .consumers = 2, .planes = 3, .promote = true}, false},
    {{.m = 128, .n = 64, .stages = 3, .consumers = 2, .planes = 3, .promote = true}, false},
    {{.m = 128, .n = 128, .stages = 2, .consumers = 2, .planes = 3, .promote = true}, true},
    {{.m = 64, .n = 192, .stages = 2, .consumers = 1, .planes = 3, .promote = true}, true},
    {{.m = 128, .n = 128, .stages = 3, .consumers = 2, .planes = 2, .promote = true}, false},
    {{.m = 128, .n = 64, .stages = 4, .consumers = 2, .planes = 2, .promote = true}, false},
    {{.m = 128, .n = 192, .stages = 2, .consumers = 2, .planes = 2, .promote = true}, true},
    {{.m = 64, .n = 192, .stages = 3, .consumers = 1, .planes = 2, .promote = true}, true},
};
// clang-format on
inline constexpr int kSm90PlaneConfigCount = 8;

// `config` counts in kSm90ConvConfigs. weights_along_k: channels that are summed are neighbours in the
// weights; not asked of gradients of weights.
Sm90Kernel sm90_conv_kernel_bfloat16(int config, bool weights_along_k);
Sm90Kernel sm90_conv_kernel_float16(int config, bool weights_along_k);
Sm90Kernel sm90_conv_kernel_tf32(int config, bool weights_along_k);
Sm90Kernel sm90_conv_kernel_planes(int config);  // counts in kSm90PlaneConfigs

// ---- On the host -------------------------------------------------------------------------------

// What of the channels of a gradient of weights is wanted, and where it goes: channel c is number
// c % padded of position c / padded; the first `channels` of each are written, `stride` apart from
// position to position. padded = 0: all channels, of one position.
struct Sm90Spread {
  int64_t padded = 0, channels = 0, stride = 0;
};

// From the moments of the parts of so many rows to the epilogue's mean and var.
size_t sm90_moments_bytes(int64_t rows, int64_t columns);
void sm90_merge_moments(const float2* parts, int64_t rows, const ConvEpilogue& e,
                        const Launch& launch);

// Forward and gradient of weights, for those who prepare x otherwise than the others do.
const char* sm90_forward_declines(const ConvProblem& p);
size_t sm90_forward_workspace_bytes(const ConvProblem& p);
void sm90_forward(const ConvProblem& p, const Launch& launch);
const char* sm90_weights_decline(const ConvProblem& p, const Sm90Spread& spread);
size_t sm90_weights_workspace_bytes(const ConvProblem& p, const Sm90Spread& spread);
void sm90_weights(const ConvProblem& p, const Sm90Spread& spread, const Launch& launch);

}  // namespace dlkern
