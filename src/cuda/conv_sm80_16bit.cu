// Convolutions by mma.sync (conv_sm80.cuh): the kernels for 16-bit operands.
#if !defined(__HIPCC__)

#include "cuda/conv_sm80.cuh"

namespace dlkern::gpu {

template void launch_conv_mma<BFloat16>(const ConvMmaArgs&, ConvLines, bool, const Launch&);
template void add_conv_parts<BFloat16>(const void*, const ConvResult&, int, int, const Launch&);
template void launch_conv_mma<Half>(const ConvMmaArgs&, ConvLines, bool, const Launch&);
template void add_conv_parts<Half>(const void*, const ConvResult&, int, int, const Launch&);

}  // namespace dlkern::gpu

#endif
