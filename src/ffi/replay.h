#pragma once

#include <string_view>

#include "ffi/arguments.h"

namespace dlkern::ffi {

// Runs a C function on the arguments of a record; nullptr where there is no such function.
Replay* find_replay(std::string_view function);

}  // namespace dlkern::ffi
