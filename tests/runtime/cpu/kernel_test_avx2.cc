// Pieces of math_avx2.h and rope_table.h for tests/runtime/cpu/test_math.py. n is a multiple of 8 where
// elements are independent.
#include "kernel_test.h"

#if defined(__x86_64__)
#include "cpu/kernels/math_avx2.h"
#include "cpu/kernels/rope_table.h"

namespace ingot::cpu {
namespace {

template <__m256 (*kFunction)(__m256)>
void each(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    const __m256 x = _mm256_loadu_ps(static_cast<const float*>(in) + i);
    _mm256_storeu_ps(static_cast<float*>(out) + i, kFunction(x));
  }
}

template <typename Code, __m256 (*kLoad)(const Code*)>
void decode(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    _mm256_storeu_ps(static_cast<float*>(out) + i, kLoad(static_cast<const Code*>(in) + i));
  }
}

template <typename Code, void (*kStore)(Code*, __m256)>
void encode(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    kStore(static_cast<Code*>(out) + i, _mm256_loadu_ps(static_cast<const float*>(in) + i));
  }
}

void rms(const void* in, void* out, uint32_t n, uint32_t) {
  *static_cast<float*>(out) = rms_factor8(static_cast<const float*>(in), n, 1e-5f);
}

void quantise(const void* in, void* out, uint32_t n, uint32_t) {
  auto* codes = static_cast<int8_t*>(out);
  auto* scales = reinterpret_cast<float*>(codes + size_t{n} * plan::kI8Group);
  for (uint32_t g = 0; g < n; ++g) {
    const float* x = static_cast<const float*>(in) + size_t{g} * plan::kI8Group;
    const __m256 values[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                              _mm256_loadu_ps(x + 24)};
    scales[g] = quantise_group8(values, codes + size_t{g} * plan::kI8Group);
  }
}

void sines(const void* in, void* out, uint32_t n, uint32_t) {
  for (uint32_t i = 0; i < n; ++i) {
    const SinCos value = sincos_(static_cast<const double*>(in)[i]);
    static_cast<double*>(out)[i] = value.sine;
    static_cast<double*>(out)[n + i] = value.cosine;
  }
}

void rope(const void* in, void* out, uint32_t n, uint32_t size) {
  for (uint32_t i = 0; i < n; ++i)
    rope_head8(static_cast<float*>(out) + i * size, static_cast<const float*>(in), size / 2);
}

constexpr NamedPiece kPieces[] = {
    {"exp", each<exp8>},
    {"silu", each<silu8>},
    {"bf16_decode", decode<uint16_t, load8_bf16>},
    {"f16_decode", decode<uint16_t, load8_f16>},
    {"e4m3_decode", decode<uint8_t, load8_e4m3>},
    {"e5m2_decode", decode<uint8_t, load8_e5m2>},
    {"bf16_encode", encode<uint16_t, encode8_bf16>},
    {"e4m3_encode", encode<uint8_t, encode8_float8<E4m3>>},
    {"e5m2_encode", encode<uint8_t, encode8_float8<E5m2>>},
    {"rms_factor", rms},
    {"quantise", quantise},
    {"sincos", sines},
    {"rope", rope},
    {nullptr, nullptr},
};

}  // namespace

const NamedPiece* avx2_pieces() { return kPieces; }

}  // namespace ingot::cpu
#else
namespace ingot::cpu {
const NamedPiece* avx2_pieces() { return nullptr; }
}  // namespace ingot::cpu
#endif
