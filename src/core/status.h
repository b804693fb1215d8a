// Errors inside the library are exceptions; entry() in call.h turns them into a dlk_status_t.
#pragma once

#include <dlkern/core.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace dlkern {

class Error : public std::runtime_error {
 public:
  Error(dlk_status_t status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  dlk_status_t status() const { return status_; }

 private:
  dlk_status_t status_;
};

// The arguments streamed into one string.
template <class... Args>
std::string cat(Args&&... args) {
  std::ostringstream out;
  (out << ... << std::forward<Args>(args));
  return out.str();
}

template <class... Args>
[[noreturn]] void fail(dlk_status_t status, Args&&... args) {
  throw Error(status, cat(std::forward<Args>(args)...));
}

// Keeps the message for dlk_last_error() of this thread; returns status.
dlk_status_t set_last_error(dlk_status_t status, const char* op, const char* message) noexcept;

}  // namespace dlkern
