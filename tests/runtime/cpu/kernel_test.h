// C hooks over the CPU kernels for tests/support/kernels.py. A piece has one signature: `n` elements of
// float32 or codes in, as many out; `size` is the piece's own parameter.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"

#define INGOT_HOOK extern "C" __attribute__((visibility("default")))

namespace ingot::cpu {

using Piece = void (*)(const void* in, void* out, uint32_t n, uint32_t size);

struct NamedPiece {
  const char* name;
  Piece run;
};

// The pieces of each ISA, ended by a null name; null when this build has none.
const NamedPiece* scalar_pieces();
const NamedPiece* avx2_pieces();

}  // namespace ingot::cpu
