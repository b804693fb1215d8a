// Images and weights from one layout to another for kernels that take one alone, several in one launch.
#pragma once

#include <span>

#include "ops/layout.h"

namespace dlkern::gpu {

// y = x for each piece, views of one shape and item size; they do not overlap.
void copy_layouts(std::span<const Piece> pieces, const Launch& launch);

}  // namespace dlkern::gpu
