#include "error.h"

#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ingot::core {

ingot_code fail(ingot_error* error, ingot_code code, uint64_t limit, uint64_t actual, const char* format,
                ...) {
  if (error == nullptr) return code;
  std::memset(error, 0, sizeof *error);
  error->code = code;
  error->limit = limit;
  error->actual = actual;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return code;
}

ingot_code succeed(ingot_error* error) {
  if (error != nullptr) std::memset(error, 0, sizeof *error);
  return INGOT_OK;
}

const char* errno_text(int value) {
  switch (value) {
    case ENOENT:
      return "there is no such file";
    case ENOTDIR:
      return "a part of the path is not a directory";
    case EACCES:
    case EPERM:
      return "permission is denied";
    case EISDIR:
      return "it is a directory";
    case ENAMETOOLONG:
      return "the path is too long";
    case ELOOP:
      return "the path has too many symbolic links";
    case EMFILE:
    case ENFILE:
      return "too many files are open";
    case ENOMEM:
      return "the system has no memory left";
    case EAGAIN:
      return "a system limit is reached";
    case EINVAL:
      return "the system refuses the request";
    case EIO:
      return "the device failed";
    case ENXIO:
    case ENODEV:
      return "it cannot be mapped";
    default:
      return "the system refuses";
  }
}

void abort_invariant(const char* id, const char* text, const char* file, int line) {
  char message[512];
  const int length = std::snprintf(message, sizeof message, "ingot: %s: %s (%s:%d)\n", id, text, file, line);
  const size_t bytes = length < 0                                     ? 0
                       : static_cast<size_t>(length) < sizeof message ? static_cast<size_t>(length)
                                                                      : sizeof message - 1;
  if (::write(STDERR_FILENO, message, bytes) < 0) std::abort();
  std::abort();
}

}  // namespace ingot::core
