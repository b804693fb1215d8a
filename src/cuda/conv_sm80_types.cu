// Convolutions by mma.sync (conv_sm80.cuh): the kernels for float32 as tf32, and for float64.
#if !defined(__HIPCC__)

#include "cuda/conv_sm80.cuh"

namespace dlkern::gpu {

template void launch_conv_mma<float>(const ConvMmaArgs&, ConvLines, bool, const Launch&);
template void add_conv_parts<float>(const void*, const ConvResult&, int, int, const Launch&);
template void launch_conv_mma<double>(const ConvMmaArgs&, ConvLines, bool, const Launch&);
template void add_conv_parts<double>(const void*, const ConvResult&, int, int, const Launch&);

}  // namespace dlkern::gpu

#endif
