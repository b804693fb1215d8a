// The arguments of any compute function of the C API as bytes, and back.
//
// Function<f> derives from f's type how each argument is written and read: a tensor, a list of
// tensors (whose length is the integer argument before it), a params struct, the launch. A function
// with an argument of another kind is none that can be recorded.
//
// The bytes are a Header, its TensorRecords, then the arguments in order; a tensor argument is its
// index among the records. They hold no address, and are read by the same version of the library
// that wrote them. Tensors are contiguous.
#pragma once

#include <dlkern/dlkern.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <vector>

namespace dlkern::ffi {

inline constexpr int kMaxDims = 8;

struct Header {
  uint32_t version;
  uint32_t tensors;
};

struct TensorRecord {
  DLDataType dtype;
  int32_t ndim;
  int64_t shape[kMaxDims];
};

// The tensors that a params struct points to.
template <class Params>
inline constexpr std::array<const DLTensor * Params::*, 0> kTensorsOf{};
template <>
inline constexpr std::array kTensorsOf<dlk_softmax_params>{&dlk_softmax_params::mask};
template <>
inline constexpr std::array kTensorsOf<dlk_step_scalars>{
    &dlk_step_scalars::lr, &dlk_step_scalars::step, &dlk_step_scalars::grad_scale,
    &dlk_step_scalars::found_inf};

class Writer {
 public:
  void write(const DLTensor* t) {
    put(t ? static_cast<int32_t>(data_.size()) : -1);
    if (!t) return;
    TensorRecord record{t->dtype, t->ndim, {}};
    std::copy_n(t->shape, t->ndim, record.shape);
    tensors_.push_back(record);
    data_.push_back(static_cast<char*>(t->data) + t->byte_offset);
  }
  void write(int64_t count) { put(count_ = count); }
  void write(const DLTensor* const* list) {
    put(list != nullptr);
    for (int64_t i = 0; list && i < count_; ++i) write(list[i]);
  }
  void write(const dlk_launch*) {}
  template <class Params>
  void write(const Params* params) {
    put(params != nullptr);
    if (!params) return;
    put(*params);
    for (const auto member : kTensorsOf<Params>) write(params->*member);
  }

  // Where the tensors lie, in the order of their records.
  const std::vector<void*>& data() const { return data_; }
  std::vector<uint8_t> bytes() const {
    const Header header{DLK_VERSION, static_cast<uint32_t>(tensors_.size())};
    const size_t tensors_bytes = tensors_.size() * sizeof(TensorRecord);
    std::vector<uint8_t> all(sizeof header + tensors_bytes + arguments_.size());
    std::memcpy(all.data(), &header, sizeof header);
    std::memcpy(all.data() + sizeof header, tensors_.data(), tensors_bytes);
    std::copy(arguments_.begin(), arguments_.end(), all.end() - arguments_.size());
    return all;
  }

 private:
  template <class T>
  void put(const T& value) {
    const auto* first = reinterpret_cast<const uint8_t*>(&value);
    arguments_.insert(arguments_.end(), first, first + sizeof(T));
  }

  std::vector<uint8_t> arguments_;
  std::vector<TensorRecord> tensors_;
  std::vector<void*> data_;
  int64_t count_ = 0;
};

// What it reads lives as long as it does. Throws where the bytes end too early or are of another
// version.
class Reader {
 public:
  Reader(const uint8_t* bytes, size_t size) : next_(bytes), end_(bytes + size) {
    const auto header = get<Header>();
    if (header.version != DLK_VERSION) throw std::runtime_error("recorded by another version");
    records_ = allocate<TensorRecord>(header.tensors);
    tensors_ = allocate<DLTensor>(count_tensors_ = header.tensors);
    for (uint32_t i = 0; i < header.tensors; ++i) records_[i] = get<TensorRecord>();
  }

  uint32_t count() const { return count_tensors_; }
  const TensorRecord& record(uint32_t i) const { return records_[i]; }
  // To be called for each tensor before arguments are read.
  void place(uint32_t i, void* data, DLDevice device) {
    TensorRecord& r = records_[i];
    tensors_[i] = {data, device, r.ndim, r.dtype, r.shape, nullptr, 0};
  }

  template <class T>
  T read(const dlk_launch* launch) {
    using Pointee = std::remove_const_t<std::remove_pointer_t<T>>;
    if constexpr (std::is_same_v<T, int64_t>) {
      return list_length_ = get<int64_t>();
    } else if constexpr (std::is_same_v<T, const dlk_launch*>) {
      return launch;
    } else if constexpr (std::is_same_v<T, const DLTensor*>) {
      return tensor();
    } else if constexpr (std::is_same_v<T, const DLTensor* const*>) {
      return list();
    } else {
      return params<Pointee>();
    }
  }

 private:
  template <class T>
  T get() {
    if (static_cast<size_t>(end_ - next_) < sizeof(T)) throw std::runtime_error("record is cut");
    T value;
    std::memcpy(&value, next_, sizeof(T));
    next_ += sizeof(T);
    return value;
  }
  template <class T>
  T* allocate(size_t count) {
    return static_cast<T*>(arena_.allocate(count * sizeof(T), alignof(T)));
  }
  const DLTensor* tensor() {
    const auto index = get<int32_t>();
    if (index >= static_cast<int64_t>(count_tensors_)) throw std::runtime_error("no such tensor");
    return index < 0 ? nullptr : &tensors_[index];
  }
  const DLTensor* const* list() {
    if (!get<bool>()) return nullptr;
    auto* list = allocate<const DLTensor*>(list_length_);
    for (int64_t i = 0; i < list_length_; ++i) list[i] = tensor();
    return list;
  }
  template <class Params>
  const Params* params() {
    if (!get<bool>()) return nullptr;
    auto* params = new (allocate<Params>(1)) Params(get<Params>());
    for (const auto member : kTensorsOf<Params>) params->*member = tensor();
    return params;
  }

  const uint8_t* next_;
  const uint8_t* end_;
  std::array<std::byte, 8192> memory_;
  std::pmr::monotonic_buffer_resource arena_{memory_.data(), memory_.size()};
  TensorRecord* records_;
  DLTensor* tensors_;
  uint32_t count_tensors_;
  int64_t list_length_ = 0;
};

using Replay = dlk_status_t(Reader&, const dlk_launch*);

template <class T>
struct IsRecordable : std::false_type {};
template <class T>
  requires std::is_class_v<T>
struct IsRecordable<const T*> : std::true_type {};
template <>
struct IsRecordable<const DLTensor* const*> : std::true_type {};
template <>
struct IsRecordable<int64_t> : std::true_type {};

template <auto function>
struct Function;

template <class... Args, dlk_status_t (*function)(Args...)>
struct Function<function> {
  static constexpr bool is_recordable =
      (IsRecordable<Args>::value && ...) &&
      std::is_same_v<std::tuple_element_t<sizeof...(Args) - 1, std::tuple<Args...>>,
                     const dlk_launch*>;

  static dlk_status_t replay(Reader& in, const dlk_launch* launch) {
    const std::tuple<Args...> args{in.read<Args>(launch)...};  // braces: from left to right
    return std::apply(function, args);
  }
};

}  // namespace dlkern::ffi
