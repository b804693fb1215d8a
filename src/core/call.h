// One C API call: arguments checked, an implementation chosen and run.
//
// Every C function of src/ops is one entry(...) whose body takes its tensors through Call, checks
// them, fills a Problem and hands it to Call::run:
//
//     return entry("softmax", launch, [&](Call& call) {
//       const Tensor x = call.input("x", x_), y = call.output("y", y_);
//       call.require_floating(x);
//       call.require_like(y, x);
//       call.run(SoftmaxForward{x, y, call.axis("axis", params.axis, x), log});
//     });
#pragma once

#include <algorithm>
#include <cstring>
#include <forward_list>
#include <initializer_list>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/macros.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tuning.h"

namespace dlkern {

// What an implementation may use while it runs.
struct Launch {
  void* stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  int device = 0;
};

// One way to compute a Problem. A backend lists them best first, a plain one last.
template <class Problem>
struct Impl {
  const char* name;
  // nullptr where this implementation can take the problem, else the reason why not.
  const char* (*supports)(const Problem&);
  size_t (*workspace_bytes)(const Problem&);  // nullptr: none
  void (*run)(const Problem&, const Launch&);
  // The key of the problem and the configurations worth timing; nullptr: nothing to tune.
  void (*candidates)(const Problem&, Candidates&) = nullptr;
};

template <class Problem>
using ImplList = std::span<const Impl<Problem>>;

template <class Problem>
const char* supports_all(const Problem&) {
  return nullptr;
}

// Each op family declares a specialisation of these for each of its problems in src/ops/<op>.h and
// defines it in src/cpu/<op>.cpp and src/cuda/<op>.cu.
template <class Problem>
ImplList<Problem> cpu_impls();
template <class Problem>
ImplList<Problem> gpu_impls();

// Makes a tensor's device current and the previous one again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

class Call {
 public:
  Call(const char* op, const dlk_launch* launch);

  // Arguments. The first tensor decides the device; all others must be on it. Outputs must not
  // overlap themselves.
  Tensor input(const char* name, const DLTensor* t);
  Tensor output(const char* name, const DLTensor* t);
  // Read and written (running statistics, optimizer state).
  Tensor inout(const char* name, const DLTensor* t) { return output(name, t); }
  Tensor optional_input(const char* name, const DLTensor* t) {
    return t ? input(name, t) : Tensor{};
  }
  Tensor optional_output(const char* name, const DLTensor* t) {
    return t ? output(name, t) : Tensor{};
  }
  Tensor optional_inout(const char* name, const DLTensor* t) { return optional_output(name, t); }
  // A list of `count` tensors; messages name one of them "<name>[i]".
  std::vector<Tensor> input_list(const char* name, const DLTensor* const* list, int64_t count) {
    return add_list(name, list, count, &Call::input);
  }
  std::vector<Tensor> output_list(const char* name, const DLTensor* const* list, int64_t count) {
    return add_list(name, list, count, &Call::output);
  }
  std::vector<Tensor> inout_list(const char* name, const DLTensor* const* list, int64_t count) {
    return output_list(name, list, count);
  }

  // Checks. Each throws with a message "<argument> is <what it is>, expected <what>".
  void require_floating(const Tensor& t) const;  // float64, float32, float16 or bfloat16
  void require_dtype(const Tensor& t, std::initializer_list<DType> allowed) const;
  void require_same_dtype(const Tensor& t, const Tensor& as) const;
  void require_rank(const Tensor& t, int low, int high) const;
  void require_shape(const Tensor& t, std::span<const int64_t> shape, const char* why) const;
  void require_same_shape(const Tensor& t, const Tensor& as) const;
  // One element of this dtype, of shape [] or [1].
  void require_scalar(const Tensor& t, DType dtype) const;
  void require_like(const Tensor& t, const Tensor& as) const {  // dtype and shape
    require_same_dtype(t, as);
    require_same_shape(t, as);
  }
  // t (absent or not) broadcasts to the shape of `to`.
  void require_broadcasts(const Tensor& t, const Tensor& to, const char* what_to_is) const;
  // out shares no memory with in, or is exactly in (same address, strides and item size).
  void require_same_or_disjoint(const Tensor& out, const Tensor& in) const;
  // out shares no memory with in: for ops that read an input after having written an output.
  void require_disjoint(const Tensor& out, const Tensor& in) const;
  // The same of every output and all other arguments, for lists of them: in order of addresses.
  void require_outputs_apart() const;
  // axis in [-ndim, ndim) made non-negative.
  int axis(const char* name, int64_t axis, const Tensor& of) const;

  const Device& device() const { return device_; }
  static bool debug();  // DLKERN_DEBUG is set
  // Debug mode in a call that may wait for the device (neither plan-only nor being captured):
  // expensive checks of values are wanted.
  bool checks_values() const;
  // For those checks: a contiguous host copy of an integer tensor, read in stream order.
  std::vector<int64_t> read_integers(const Tensor& t) const;

  template <class Problem>
  void run(const Problem& problem) {
    ImplList<Problem> impls;
    if (device_.is_gpu) {
#if DLKERN_WITH_GPU
      impls = gpu_impls<Problem>();
#endif
    } else {
      impls = cpu_impls<Problem>();
    }
    const DeviceGuard guard(device_);  // choices depend on the device, too
    const tuning::Pin pin;
    for (const Impl<Problem>& impl : impls) {
      const char* reason = excluded(impl.name);
      if (!reason) reason = impl.supports(problem);
      if (reason) {
        declined(impl.name, reason);
        continue;
      }
      const size_t bytes = impl.workspace_bytes ? impl.workspace_bytes(problem) : 0;
      if (!chosen(impl.name, bytes)) {
        if (plan_only() && impl.candidates) impl.candidates(problem, plan_candidates());
        return;
      }
      if (debug()) debug_check_pointers();
      impl.run(problem, launch_);
      if (debug()) debug_check_results();
      return;
    }
    none_chosen();
  }

 private:
  struct Argument {
    Tensor tensor;
    bool is_output;
  };

  void add(const Tensor& t, bool is_output);
  std::vector<Tensor> add_list(const char* name, const DLTensor* const* list, int64_t count,
                               Tensor (Call::*add_one)(const char*, const DLTensor*));
  static const char* excluded(const char* impl);  // by DLKERN_IMPL; nullptr: it is not
  void declined(const char* impl, const char* reason);
  bool plan_only() const { return flags_ & DLK_LAUNCH_PLAN_ONLY; }
  bool chosen(const char* impl, size_t workspace_bytes);  // false: plan only, or nothing to compute
  static Candidates& plan_candidates();                   // of the plan that chosen() has begun
  [[noreturn]] void none_chosen();
  std::string describe() const;
  void debug_check_pointers() const;
  void debug_check_results() const;

  const char* op_;
  Launch launch_;
  uint32_t flags_ = 0;
  Device device_;
  std::vector<Argument> arguments_;
  std::forward_list<std::string> names_;  // of the tensors of lists
  std::string explanation_;
};

// Params as the caller gave them, on top of the defaults: a caller compiled against an older header
// passes a shorter struct, whose missing fields keep their defaults.
template <class Params>
Params read_params(const Params* given, const Params& defaults, const char* name = "params") {
  Params params = defaults;
  if (given) {
    if (given->struct_size < sizeof(uint32_t)) {
      fail(DLK_INVALID_ARGUMENT, name, ".struct_size is ", given->struct_size,
           ", expected the size of the struct");
    }
    std::memcpy(static_cast<void*>(&params), given,
                std::min<size_t>(given->struct_size, sizeof(Params)));
    params.struct_size = sizeof(Params);
  }
  return params;
}

// Fills a struct that the caller reads, as far as the one that he was compiled with reaches. False
// where it is NULL or its struct_size was not set.
template <class Struct>
bool write_struct(Struct* to, Struct value) {
  if (!to || to->struct_size < sizeof(uint32_t)) return false;
  value.struct_size = to->struct_size;
  std::memcpy(static_cast<void*>(to), &value, std::min<size_t>(value.struct_size, sizeof(Struct)));
  return true;
}

// Runs body() and turns exceptions into a status and dlk_last_error().
template <class Body>
dlk_status_t guarded(const char* op, Body&& body) noexcept {
  try {
    body();
    return DLK_SUCCESS;
  } catch (const Error& error) {
    return set_last_error(error.status(), op, error.what());
  } catch (const std::bad_alloc&) {
    return set_last_error(DLK_OUT_OF_MEMORY, op, "host memory is exhausted");
  } catch (const std::exception& error) {
    return set_last_error(DLK_INTERNAL, op, error.what());
  } catch (...) {
    return set_last_error(DLK_INTERNAL, op, "unknown exception");
  }
}

template <class Body>
dlk_status_t entry(const char* op, const dlk_launch* launch, Body&& body) noexcept {
  return guarded(op, [&] {
    Call call(op, launch);
    body(call);
  });
}

}  // namespace dlkern
