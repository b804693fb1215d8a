// The parts of softmax on a GPU that are compiled apart.
#pragma once

#include "ops/softmax.h"

namespace dlkern {

// Masked rows in registers (softmax_masked.cu): why not, and the launch.
const char* masked_not_in_registers(const SoftmaxForward& p);
void launch_masked_registers(const SoftmaxForward& p, const Launch& launch);

}  // namespace dlkern
