#include "core/status.h"

#include <string>

namespace dlkern {
namespace {
thread_local std::string last_error;
}  // namespace

dlk_status_t set_last_error(dlk_status_t status, const char* op, const char* message) noexcept {
  try {
    last_error = cat(op, ": ", message);
  } catch (...) {
    last_error.clear();
  }
  return status;
}

}  // namespace dlkern

const char* dlk_last_error(void) { return dlkern::last_error.c_str(); }

const char* dlk_status_string(dlk_status_t status) {
  switch (status) {
    case DLK_SUCCESS:
      return "DLK_SUCCESS";
    case DLK_INVALID_ARGUMENT:
      return "DLK_INVALID_ARGUMENT";
    case DLK_UNSUPPORTED_DTYPE:
      return "DLK_UNSUPPORTED_DTYPE";
    case DLK_NOT_SUPPORTED:
      return "DLK_NOT_SUPPORTED";
    case DLK_WORKSPACE_TOO_SMALL:
      return "DLK_WORKSPACE_TOO_SMALL";
    case DLK_OUT_OF_MEMORY:
      return "DLK_OUT_OF_MEMORY";
    case DLK_DEVICE_ERROR:
      return "DLK_DEVICE_ERROR";
    case DLK_INTERNAL:
      return "DLK_INTERNAL";
  }
  return "unknown status";
}
