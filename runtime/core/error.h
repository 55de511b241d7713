// Operating errors and programmer errors. `fail` fills the caller's ingot_error with a code, two numbers and
// a sentence of ours: lower case, what was found, what is allowed, what to do. INGOT_ASSERT is for what
// cannot happen unless the runtime is wrong: it prints the invariant's id and aborts, in production too.
#pragma once

#include <cstdint>

#include "ingot.h"

namespace ingot::core {

// Fills *error (may be null) and returns `code`. `format` is a printf format for integers and strings.
__attribute__((format(printf, 5, 6))) ingot_code fail(ingot_error* error, ingot_code code, uint64_t limit,
                                                      uint64_t actual, const char* format, ...);

// Zeroes *error (may be null) and returns INGOT_OK.
ingot_code succeed(ingot_error* error);

// What an errno value means, in our words; "error N" is said by the caller beside it.
const char* errno_text(int value);

// Prints "ingot: INV-xx: text (file:line)" to standard error without allocating, then aborts.
[[noreturn]] void abort_invariant(const char* id, const char* text, const char* file, int line);

}  // namespace ingot::core

#define INGOT_ASSERT(condition, id, text)                           \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::ingot::core::abort_invariant(id, text, __FILE__, __LINE__); \
  } while (false)
