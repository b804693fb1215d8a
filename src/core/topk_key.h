// Elements as unsigned integers in the order in which they are selected.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/float16.h"
#include "core/macros.h"

namespace dlkern {

template <class T>
using KeyOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// A larger key is selected first: largest elements, NaN before all of them, or the smallest and NaN
// last. Equal numbers have equal keys, 0 and -0, and any two NaN. It takes 8 sizeof(T) bits.
template <class T>
DLK_HD KeyOf<T> selection_key(T v, bool largest) {
  using Key = KeyOf<T>;
  constexpr int kBits = 8 * sizeof(T);
  constexpr Key kAll = static_cast<Key>(~Key{0}) >> (8 * sizeof(Key) - kBits);
  constexpr Key kSign = Key{1} << (kBits - 1);
  Key key;
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<Key>(v) ^ kSign;
  } else {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, Key>;
    const Key bits = bit_cast_to<Bits>(v), magnitude = bits & ~kSign & kAll;
    constexpr Key kInfinity = std::is_same_v<T, double>  ? Key(0x7ff0000000000000ull)
                              : std::is_same_v<T, float> ? Key(0x7f800000u)
                              : std::is_same_v<T, Half>  ? Key(0x7c00u)
                                                         : Key(0x7f80u);
    key = bits & kSign ? kSign - magnitude : kSign + magnitude;
    if (magnitude > kInfinity) key = kAll;
  }
  return largest ? key : kAll - key;
}

// One of the candidates of a row.
template <class Key>
struct Entry {
  Key key;
  uint32_t index;
  DLK_HD bool before(const Entry& other) const {
    return key > other.key || (key == other.key && index < other.index);
  }
};

}  // namespace dlkern
