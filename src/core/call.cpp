#include "core/call.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/gpu_runtime.h"
#include "core/index.h"

namespace dlkern {
namespace {

struct Plan {
  const char* implementation = "";
  std::string explanation;
  size_t workspace_bytes = 0;
  Candidates candidates;
};
thread_local Plan last_plan;

enum class Debug { kOff, kOn, kFinite };

Debug debug_mode() {
  static const Debug mode = [] {
    const char* value = std::getenv("DLKERN_DEBUG");
    if (!value || !*value || std::string_view(value) == "0") return Debug::kOff;
    return std::string_view(value) == "nan" ? Debug::kFinite : Debug::kOn;
  }();
  return mode;
}

bool verbose() {
  static const bool on = [] {
    const char* value = std::getenv("DLKERN_VERBOSE");
    return value && *value && std::string_view(value) != "0";
  }();
  return on;
}

// What this thread's calls may choose from: ','-separated names, or anything where it is empty.
std::string& implementations() {
  static const std::string initial = [] {
    const char* value = std::getenv("DLKERN_IMPL");
    return std::string(value ? value : "");
  }();
  thread_local std::string names = initial;
  return names;
}

// Copies a tensor's elements in row-major order into a host vector.
template <class T>
std::vector<T> to_host(const Tensor& t, void* stream) {
  const StridedIndex<1> index = make_index<1>({&t});
  int64_t low = 0, high = 0;  // extent of the view around its first element
  for (int d = 0; d < index.ndim; ++d) {
    const int64_t step = index.stride[0][d] * (index.shape[d] - 1);
    (step < 0 ? low : high) += step;
  }
  std::vector<T> span(t.numel() ? high - low + 1 : 0);
  if (t.numel() == 0) return span;
  const T* first = t.as<const T>() + low;
  const size_t bytes = span.size() * sizeof(T);
  if (t.device.is_gpu) {
#if DLKERN_WITH_GPU
    gpu::copy_to_host(span.data(), first, bytes, stream);
#else
    (void)stream;
#endif
  } else {
    std::memcpy(static_cast<void*>(span.data()), first, bytes);
  }
  std::vector<T> values(t.numel());
  for (int64_t i = 0; i < t.numel(); ++i) {
    int64_t offset[1];
    index.offsets(i, offset);
    values[i] = span[offset[0] - low];
  }
  return values;
}

}  // namespace

DeviceGuard::DeviceGuard(const Device& device) {
#if DLKERN_WITH_GPU
  if (device.is_gpu) previous_ = gpu::push_device(device.index);
#else
  (void)device;
#endif
}

DeviceGuard::~DeviceGuard() {
#if DLKERN_WITH_GPU
  if (previous_ >= 0) gpu::pop_device(previous_);
#endif
}

bool Call::debug() { return debug_mode() != Debug::kOff; }

Call::Call(const char* op, const dlk_launch* launch) : op_(op) {
  if (launch) {
    const dlk_launch l = read_params(launch, dlk_launch DLK_LAUNCH_INIT, "launch");
    launch_ = {l.stream, l.workspace, l.workspace_bytes, 0};
    flags_ = l.flags;
    if (flags_ & ~uint32_t{DLK_LAUNCH_PLAN_ONLY}) {
      fail(DLK_INVALID_ARGUMENT, "launch.flags is ", flags_, ", expected bits of dlk_launch_flags");
    }
  }
}

void Call::add(const Tensor& t, bool is_output) {
  if (arguments_.empty()) {
    arguments_.reserve(5);  // enough for most ops, and a size that malloc has at hand
    device_ = t.device;
    launch_.device = t.device.index;
  } else if (t.device != device_) {
    fail(DLK_INVALID_ARGUMENT, t.name, " is on ", to_string(t.device), ", expected ",
         to_string(device_), " (", arguments_[0].tensor.name, ")");
  }
  arguments_.push_back({t, is_output});
}

std::vector<Tensor> Call::add_list(const char* name, const DLTensor* const* list, int64_t count,
                                   Tensor (Call::*add_one)(const char*, const DLTensor*)) {
  if (count < 0) fail(DLK_INVALID_ARGUMENT, name, " has ", count, " tensors");
  if (count > 0 && !list)
    fail(DLK_INVALID_ARGUMENT, name, " is NULL, expected ", count, " tensors");
  std::vector<Tensor> tensors;
  tensors.reserve(count);
  arguments_.reserve(arguments_.size() + count);
  for (int64_t i = 0; i < count; ++i) {
    names_.push_front(std::string(name) + "[" + std::to_string(i) + "]");
    tensors.push_back((this->*add_one)(names_.front().c_str(), list[i]));
  }
  return tensors;
}

Tensor Call::input(const char* name, const DLTensor* t) {
  const Tensor tensor = make_tensor(name, t);
  add(tensor, false);
  return tensor;
}

Tensor Call::output(const char* name, const DLTensor* t) {
  const Tensor tensor = make_tensor(name, t);
  if (has_internal_overlap(tensor)) {
    fail(DLK_INVALID_ARGUMENT, name, " has elements that share memory, which an output must not");
  }
  add(tensor, true);
  return tensor;
}

void Call::require_floating(const Tensor& t) const {
  if (!is_floating(t.dtype)) {
    fail(DLK_UNSUPPORTED_DTYPE, t.name, ".dtype is ", dtype_name(t.dtype),
         ", expected float64, float32, float16 or bfloat16");
  }
}

void Call::require_dtype(const Tensor& t, std::initializer_list<DType> allowed) const {
  std::string names;
  for (const DType dtype : allowed) {
    if (t.dtype == dtype) return;
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  fail(DLK_UNSUPPORTED_DTYPE, t.name, ".dtype is ", dtype_name(t.dtype), ", expected ", names);
}

void Call::require_same_dtype(const Tensor& t, const Tensor& as) const {
  if (t.dtype != as.dtype) {
    fail(DLK_UNSUPPORTED_DTYPE, t.name, ".dtype is ", dtype_name(t.dtype), ", expected ",
         dtype_name(as.dtype), " (", as.name, ".dtype)");
  }
}

void Call::require_rank(const Tensor& t, int low, int high) const {
  if (t.ndim < low || t.ndim > high) {
    fail(DLK_INVALID_ARGUMENT, t.name, " has ", t.ndim, " dimensions, expected ",
         low == high ? cat(low) : cat(low, " to ", high));
  }
}

void Call::require_scalar(const Tensor& t, DType dtype) const {
  require_dtype(t, {dtype});
  require_rank(t, 0, 1);
  if (t.numel() != 1) {
    fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t), ", expected [] or [1]");
  }
}

void Call::require_shape(const Tensor& t, std::span<const int64_t> shape, const char* why) const {
  bool same = t.ndim == static_cast<int>(shape.size());
  for (int d = 0; same && d < t.ndim; ++d) same = t.shape[d] == shape[d];
  if (!same) {
    fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t), ", expected ",
         shape_string(shape.data(), static_cast<int>(shape.size())), " (", why, ")");
  }
}

void Call::require_same_shape(const Tensor& t, const Tensor& as) const {
  if (!same_shape(t, as)) {
    fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t), ", expected ",
         shape_string(as), " (", as.name, ".shape)");
  }
}

void Call::require_broadcasts(const Tensor& t, const Tensor& to, const char* what_to_is) const {
  if (t && !broadcasts(t, to)) {
    fail(DLK_INVALID_ARGUMENT, t.name, ".shape is ", shape_string(t),
         ", expected one that broadcasts to ", shape_string(to), " (", what_to_is, ")");
  }
}

void Call::require_same_or_disjoint(const Tensor& out, const Tensor& in) const {
  if (!out || !in) return;
  const bool same = out.data == in.data && out.dtype == in.dtype && same_shape(out, in) &&
                    out.strides == in.strides;
  if (!same && may_overlap(out, in)) {
    fail(DLK_INVALID_ARGUMENT, out.name, " overlaps ", in.name,
         ", expected the very same tensor or separate memory");
  }
}

void Call::require_disjoint(const Tensor& out, const Tensor& in) const {
  if (may_overlap(out, in)) {
    fail(DLK_INVALID_ARGUMENT, out.name, " overlaps ", in.name, ", expected separate memory");
  }
}

void Call::require_outputs_apart() const {
  struct Placed {
    ByteRange range;
    const Argument* argument;
  };
  std::vector<Placed> placed;
  placed.reserve(arguments_.size());
  for (const Argument& a : arguments_) {
    if (a.tensor.numel()) placed.push_back({byte_range(a.tensor), &a});
  }
  std::sort(placed.begin(), placed.end(),
            [](const Placed& a, const Placed& b) { return a.range.low < b.range.low; });
  intptr_t reach = INTPTR_MIN;
  for (size_t i = 0; i < placed.size(); ++i) {
    const Argument& a = *placed[i].argument;
    for (size_t k = 0; k < i && placed[i].range.low < reach; ++k) {
      const Argument& b = *placed[k].argument;
      if (a.is_output) require_disjoint(a.tensor, b.tensor);
      if (b.is_output) require_disjoint(b.tensor, a.tensor);
    }
    reach = std::max(reach, placed[i].range.high);
  }
}

int Call::axis(const char* name, int64_t axis, const Tensor& of) const {
  if (axis < -of.ndim || axis >= of.ndim) {
    fail(DLK_INVALID_ARGUMENT, name, " is ", axis, ", expected it in [", -of.ndim, ", ", of.ndim,
         ") for ", of.name, " of ", of.ndim, " dimensions");
  }
  return static_cast<int>(axis < 0 ? axis + of.ndim : axis);
}

bool Call::checks_values() const {
  if (!debug() || plan_only()) return false;
#if DLKERN_WITH_GPU
  if (device_.is_gpu && gpu::is_capturing(launch_.stream)) return false;
#endif
  return true;
}

std::vector<int64_t> Call::read_integers(const Tensor& t) const {
  const DeviceGuard guard(device_);
  return dispatch_index(t.dtype, [&]<class T>() {
    const std::vector<T> values = to_host<T>(t, launch_.stream);
    return std::vector<int64_t>(values.begin(), values.end());
  });
}

const char* Call::excluded(const char* impl) {
  const std::string& names = implementations();
  if (names.empty()) return nullptr;
  const bool listed = ("," + names + ",").find(cat(",", impl, ",")) != std::string::npos;
  return listed ? nullptr : "not in DLKERN_IMPL";
}

void Call::declined(const char* impl, const char* reason) {
  // Not by cat(): this is on the way of every call, and a stream costs more than the whole choice.
  explanation_.append(impl).append(": declined, ").append(reason).append("\n");
}

bool Call::chosen(const char* impl, size_t workspace_bytes) {
  if (plan_only() || verbose()) {
    explanation_ += cat(impl, ": chosen");
    if (workspace_bytes) explanation_ += cat(" (workspace ", workspace_bytes, " bytes)");
    if (!plan_only()) {
      std::fprintf(stderr, "dlkern: %s: %s\n", describe().c_str(), explanation_.c_str());
    }
  }
  last_plan.implementation = impl;
  last_plan.explanation.swap(explanation_);
  last_plan.workspace_bytes = workspace_bytes;
  last_plan.candidates.key.clear();
  last_plan.candidates.names.clear();
  if (plan_only()) return false;
  bool empty = true;
  for (const Argument& a : arguments_) empty &= !a.is_output || a.tensor.numel() == 0;
  if (empty) return false;
  if (launch_.workspace_bytes < workspace_bytes || (workspace_bytes && !launch_.workspace)) {
    fail(DLK_WORKSPACE_TOO_SMALL, "workspace is ", launch_.workspace_bytes, " bytes, expected ",
         workspace_bytes, " for implementation ", impl);
  }
  if (workspace_bytes && reinterpret_cast<uintptr_t>(launch_.workspace) % 256 != 0) {
    fail(DLK_INVALID_ARGUMENT, "workspace is not aligned to 256 bytes");
  }
  return true;
}

Candidates& Call::plan_candidates() { return last_plan.candidates; }

void Call::none_chosen() {
  last_plan = {"", explanation_, 0, {}};
  fail(DLK_NOT_SUPPORTED, describe(), " has no implementation: ",
       explanation_.empty() ? "this build has none for the device" : explanation_);
}

std::string Call::describe() const {
  std::string s = cat(op_, "(");
  const char* separator = "";
  for (const auto& [t, is_output] : arguments_) {
    s += cat(separator, t.name, ": ", dtype_name(t.dtype), shape_string(t));
    separator = ", ";
  }
  return s + cat(") on ", to_string(device_));
}

void Call::debug_check_pointers() const {
#if DLKERN_WITH_GPU
  if (!device_.is_gpu || gpu::is_capturing(launch_.stream)) return;
  for (const auto& [t, is_output] : arguments_) {
    if (t.numel() == 0) continue;
    const auto item = static_cast<int64_t>(dtype_size(t.dtype));
    int64_t low = 0, high = 0;
    for (int d = 0; d < t.ndim; ++d) {
      const int64_t step = t.strides[d] * (t.shape[d] - 1);
      (step < 0 ? low : high) += step;
    }
    if (const char* why =
            gpu::check_pointer(t.as<char>() + low * item, (high - low + 1) * item, device_.index)) {
      fail(DLK_INVALID_ARGUMENT, t.name, " ", why);
    }
  }
#endif
}

void Call::debug_check_results() const {
#if DLKERN_WITH_GPU
  if (device_.is_gpu) {
    if (gpu::is_capturing(launch_.stream)) return;
    gpu::synchronize(launch_.stream);
  }
#endif
  if (debug_mode() != Debug::kFinite) return;
  for (const Argument& a : arguments_) {
    if (!a.is_output || !is_floating(a.tensor.dtype)) continue;
    dispatch_floating(a.tensor.dtype, [&]<class T>() {
      const std::vector<T> values = to_host<T>(a.tensor, launch_.stream);
      for (size_t k = 0; k < values.size(); ++k) {
        if (!std::isfinite(static_cast<double>(static_cast<Accumulator<T>>(values[k])))) {
          fail(DLK_INVALID_ARGUMENT, a.tensor.name, " holds ",
               static_cast<double>(static_cast<Accumulator<T>>(values[k])), " at flat index ", k,
               " (DLKERN_DEBUG=nan)");
        }
      }
    });
  }
}

}  // namespace dlkern

dlk_status_t dlk_explain_last(dlk_plan* plan) {
  const dlkern::Plan& last = dlkern::last_plan;
  if (!dlkern::write_struct(
          plan, {0, 0, last.workspace_bytes, last.implementation, last.explanation.c_str(),
                 last.candidates.key.c_str(), last.candidates.names.c_str()})) {
    return dlkern::set_last_error(DLK_INVALID_ARGUMENT, "explain_last",
                                  "plan is NULL or its struct_size is not set");
  }
  return DLK_SUCCESS;
}

dlk_status_t dlk_set_implementations(const char* names) {
  return dlkern::guarded("set_implementations",
                         [&] { dlkern::implementations() = names ? names : ""; });
}
