// The handler of XLA's FFI: one for all C functions. XLA gives memory and a stream; a record
// (arguments.h) says which function is called and what else it is given.
//
// Attributes of a custom call:
//     function   the C function's name
//     record     its arguments
//     buffers    for each tensor of the record the buffer that it lies in: i is operand i, ~i result i
//     workspace  bytes of scratch memory, for which there is one further result; 0: none
// The scratch memory is a result and no allocation at run time, so that XLA may record the call in
// a command buffer and replay it.
#include <cfenv>

#include "core/status.h"
#include "ffi/recorded.h"
#include "ffi/replay.h"

#if __has_include("xla/ffi/api/ffi.h")
#include "xla/ffi/api/ffi.h"

namespace dlkern::ffi {
namespace {

namespace xffi = ::xla::ffi;

template <class... Args>
xffi::Error invalid(const Args&... message) {
  return xffi::Error(xffi::ErrorCode::kInvalidArgument, cat("dlkern: ", message...));
}

xffi::ErrorCode code_of(dlk_status_t status) {
  switch (status) {
    case DLK_INVALID_ARGUMENT:
    case DLK_UNSUPPORTED_DTYPE:
      return xffi::ErrorCode::kInvalidArgument;
    case DLK_NOT_SUPPORTED:
      return xffi::ErrorCode::kUnimplemented;
    case DLK_WORKSPACE_TOO_SMALL:
      return xffi::ErrorCode::kFailedPrecondition;
    case DLK_OUT_OF_MEMORY:
      return xffi::ErrorCode::kResourceExhausted;
    default:
      return xffi::ErrorCode::kInternal;
  }
}

size_t size_bytes(const TensorRecord& tensor) {
  size_t bytes = tensor.dtype.bits / 8;
  for (int d = 0; d < tensor.ndim; ++d) bytes *= tensor.shape[d];
  return bytes;
}

struct Buffers {
  xffi::RemainingArgs operands;
  xffi::RemainingRets results;

  // The memory of operand i or result ~i, or nullopt where it is not of that size.
  std::optional<void*> find(int32_t i, size_t bytes) const {
    if (i >= 0) {
      const auto operand = operands.get<xffi::AnyBuffer>(i);
      if (!operand.has_value() || operand->size_bytes() != bytes) return std::nullopt;
      return operand->untyped_data();
    }
    auto result = results.get<xffi::AnyBuffer>(~i);
    if (!result.has_value() || (*result)->size_bytes() != bytes) return std::nullopt;
    return (*result)->untyped_data();
  }
};

// Sets what the result after the others offers, aligned as the C API wants it.
bool set_workspace(const Buffers& buffers, size_t bytes, dlk_launch* launch) {
  constexpr size_t kAlignment = 256;
  if (bytes == 0) return true;
  const auto memory = buffers.find(~static_cast<int32_t>(buffers.results.size() - 1), bytes);
  if (!memory || bytes < kAlignment) return false;
  const auto address = reinterpret_cast<uintptr_t>(*memory);
  const size_t skipped = (kAlignment - address % kAlignment) % kAlignment;
  launch->workspace = reinterpret_cast<void*>(address + skipped);
  launch->workspace_bytes = bytes - skipped;
  return true;
}

xffi::Error run(DLDevice device, void* stream, const Buffers& buffers, std::string_view function,
                xffi::Span<const uint8_t> record, xffi::Span<const int32_t> places,
                int64_t workspace) {
  Replay* replay = find_replay(function);
  if (!replay) return invalid("no function ", function);
  try {
    Reader in(record.begin(), record.size());
    if (in.count() != places.size()) return invalid("a buffer is missing");
    for (uint32_t i = 0; i < in.count(); ++i) {
      const auto memory = buffers.find(places[i], size_bytes(in.record(i)));
      if (!memory) return invalid("buffer ", places[i], " is not as recorded");
      in.place(i, *memory, device);
    }
    dlk_launch launch = DLK_LAUNCH_INIT;
    launch.stream = stream;
    if (!set_workspace(buffers, workspace, &launch)) return invalid("workspace is not as recorded");
    const dlk_status_t status = replay(in, &launch);
    if (status == DLK_SUCCESS) return xffi::Error::Success();
    return xffi::Error(code_of(status), dlk_last_error());
  } catch (const std::exception& error) {
    return invalid(error.what());
  }
}

// XLA's threads flush denormal numbers to zero, and those of dlkern do not.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

xffi::Error run_on_host(xffi::RemainingArgs operands, xffi::RemainingRets results,
                        std::string_view function, xffi::Span<const uint8_t> record,
                        xffi::Span<const int32_t> places, int64_t workspace) {
  const DefaultFloatingPoint guard;
  return run({kDLCPU, 0}, nullptr, {operands, results}, function, record, places, workspace);
}

DLDeviceType gpu_type() {
  dlk_build_info info{};
  info.struct_size = sizeof info;
  dlk_get_build_info(&info);
  return std::string_view(info.gpu) == "hip" ? kDLROCM : kDLCUDA;
}

xffi::Error run_on_gpu(void* stream, int32_t device, xffi::RemainingArgs operands,
                       xffi::RemainingRets results, std::string_view function,
                       xffi::Span<const uint8_t> record, xffi::Span<const int32_t> places,
                       int64_t workspace) {
  static const DLDeviceType type = gpu_type();
  return run({type, device}, stream, {operands, results}, function, record, places, workspace);
}

template <class Binding>
auto with_arguments(Binding binding) {
  return std::move(binding)
      .RemainingArgs()
      .RemainingRets()
      .template Attr<std::string_view>("function")
      .template Attr<xffi::Span<const uint8_t>>("record")
      .template Attr<xffi::Span<const int32_t>>("buffers")
      .template Attr<int64_t>("workspace");
}

XLA_FFI_DEFINE_HANDLER(kHostHandler, run_on_host, with_arguments(xffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(
    kGpuHandler, run_on_gpu,
    with_arguments(xffi::Ffi::Bind().Ctx<xffi::PlatformStream<void*>>().Ctx<xffi::DeviceOrdinal>()),
    {xffi::Traits::kCmdBufferCompatible});

}  // namespace
}  // namespace dlkern::ffi

void* dlk_xla_handler(int gpu) {
  return reinterpret_cast<void*>(gpu ? dlkern::ffi::kGpuHandler : dlkern::ffi::kHostHandler);
}

#else

void* dlk_xla_handler(int) { return nullptr; }

#endif
