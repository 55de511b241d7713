// Pieces of math.h and rope_table.h for tests/runtime/cpu/test_math.py.
#include "cpu/kernels/math.h"
#include "cpu/kernels/rope_table.h"
#include "kernel_test.h"

namespace ingot::cpu {
namespace {

template <typename In, typename Out, Out (*kFunction)(In)>
void each(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; ++i) static_cast<Out*>(out)[i] = kFunction(static_cast<const In*>(in)[i]);
}

void rms(const void* in, void* out, uint32_t n, uint32_t) {
  *static_cast<float*>(out) = rms_factor(static_cast<const float*>(in), n, 1e-5f);
}

// n groups of 32 codes, then n scales.
void quantise(const void* in, void* out, uint32_t n, uint32_t) {
  const auto* x = static_cast<const float*>(in);
  auto* codes = static_cast<int8_t*>(out);
  auto* scales = reinterpret_cast<float*>(codes + size_t{n} * plan::kI8Group);
  for (uint32_t g = 0; g < n; ++g) {
    scales[g] =
        quantise_group(x + size_t{g} * plan::kI8Group, plan::kI8Group, codes + size_t{g} * plan::kI8Group);
  }
}

// Sines, then cosines, of n binary64.
void sines(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; ++i) {
    const SinCos value = sincos_(static_cast<const double*>(in)[i]);
    static_cast<double*>(out)[i] = value.sine;
    static_cast<double*>(out)[n + i] = value.cosine;
  }
}

// n heads of `size` elements in place, after one row of cosines and sines of size / 2 pairs.
void rope(const void* in, void* out, uint32_t n, uint32_t size) {
  for (uint32_t i = 0; i < n; ++i)
    rope_head(static_cast<float*>(out) + i * size, static_cast<const float*>(in), size / 2);
}

constexpr NamedPiece kPieces[] = {
    {"exp", each<float, float, exp_>},
    {"silu", each<float, float, silu>},
    {"bf16_decode", each<uint16_t, float, bf16_decode>},
    {"f16_decode", each<uint16_t, float, f16_decode>},
    {"e4m3_decode", each<uint8_t, float, e4m3_decode>},
    {"e5m2_decode", each<uint8_t, float, e5m2_decode>},
    {"bf16_encode", each<float, uint16_t, bf16_encode>},
    {"e4m3_encode", each<float, uint8_t, float8_encode<E4m3>>},
    {"e5m2_encode", each<float, uint8_t, float8_encode<E5m2>>},
    {"f16_encode_scale", each<float, uint16_t, f16_encode_scale>},
    {"rms_factor", rms},
    {"quantise", quantise},
    {"sincos", sines},
    {"rope", rope},
    {nullptr, nullptr},
};

}  // namespace

const NamedPiece* scalar_pieces() { return kPieces; }

}  // namespace ingot::cpu
