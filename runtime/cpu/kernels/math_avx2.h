// math.h in vectors of eight: the same operations in the same order, so the same bits. Included by *_avx2.cc
// only.
#pragma once

#include <immintrin.h>

#include "math.h"

// Loops over accumulators have to disappear: an array that is indexed at run time lives in memory. Where a
// compiler left alone unrolls so far that accumulators are spilled, INGOT_UNROLL_2 stops it.
#if defined(__clang__)
#define INGOT_UNROLL _Pragma("clang loop unroll(full)")
#define INGOT_UNROLL_2 _Pragma("clang loop unroll_count(2)")
#else
#define INGOT_UNROLL _Pragma("GCC unroll 16")
#define INGOT_UNROLL_2 _Pragma("GCC unroll 2")
#endif

namespace ingot::cpu {
namespace {

constexpr uint32_t kLanes = 8;

alignas(32) constexpr int32_t kLaneMasks[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1};

// All ones in the first `count` of eight lanes; 0 <= count <= 8.
inline __m256i first_lanes(uint32_t count) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMasks + kLanes - count));
}

inline __m256 magnitude8(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

// --- reductions
// ---------------------------------------------------------------------------------------------

// sum16 of chains 0..7 and 8..15.
inline float sum16_reduce8(__m256 low, __m256 high) {
  const __m256 s = _mm256_add_ps(low, high);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

// Largest lane; no lane is NaN.
inline float max_reduce8(__m256 x) {
  __m128 t = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

inline float rms_factor8(const float* x, uint32_t n, float eps) {
  __m256 s[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + kLanes);
    s[0] = _mm256_fmadd_ps(a, a, s[0]);
    s[1] = _mm256_fmadd_ps(b, b, s[1]);
  }
  for (uint32_t chain = 0; i < n; i += kLanes, ++chain) {
    const __m256 a = _mm256_maskload_ps(x + i, first_lanes(n - i < kLanes ? n - i : kLanes));
    s[chain] = _mm256_fmadd_ps(a, a, s[chain]);
  }
  return 1.0f / std::sqrt(sum16_reduce8(s[0], s[1]) / static_cast<float>(n) + eps);
}

// --- number formats
// -----------------------------------------------------------------------------------------

// Eight values of each stored type.
inline __m256 load8_bf16(const uint16_t* codes) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline __m256 load8_f16(const uint16_t* codes) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
inline __m256 load8_i8(const int8_t* codes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
}
inline __m256 load8_e5m2(const uint8_t* codes) {
  const __m128i raw = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_cvtph_ps(_mm_slli_epi16(raw, 8));
}
inline __m256 load8_e4m3(const uint8_t* codes) {
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m256i seven = _mm256_set1_epi32(0x7F);
  const __m256i nan = _mm256_cmpeq_epi32(_mm256_and_si256(wide, seven), seven);
  const __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi32(INT32_MIN));
  const __m256i placed =
      _mm256_and_si256(_mm256_slli_epi32(wide, 20), _mm256_set1_epi32(static_cast<int32_t>(0x87F00000)));
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(placed), _mm256_set1_ps(0x1p120f));
  const __m256i quiet = _mm256_or_si256(sign, _mm256_set1_epi32(0x7FC00000));
  return _mm256_blendv_ps(value, _mm256_castsi256_ps(quiet), _mm256_castsi256_ps(nan));
}

// The low bytes of eight lanes.
inline void store8_bytes(uint8_t* to, __m256i lanes) {
  const __m256i bytes = _mm256_shuffle_epi8(lanes, _mm256_set1_epi32(0x0C080400));
  const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(low, high));
}

inline void encode8_bf16(uint16_t* to, __m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), even);
  const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(top, _mm256_set1_epi32(0x40)));
  const __m256 code = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_srli_epi32(sum, 16)), quiet,
                                       _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i packed = _mm256_packus_epi32(_mm256_castps_si256(code), _mm256_setzero_si256());
  const __m128i low = _mm256_castsi256_si128(packed), high = _mm256_extracti128_si256(packed, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(low, high));
}

template <typename Format>
inline void encode8_float8(uint8_t* to, __m256 value) {
  constexpr auto kShift = static_cast<int>(Format::kShift);
  const __m256i sign =
      _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(value), 24), _mm256_set1_epi32(0x80));
  const __m256 magnitude = _mm256_min_ps(magnitude8(value), _mm256_set1_ps(Format::kMax));
  const __m256i bits = _mm256_castps_si256(magnitude);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, kShift), _mm256_set1_epi32(1));
  const __m256i half = _mm256_set1_epi32((1 << (kShift - 1)) - 1);
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), even), kShift);
  const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32(static_cast<int>(Format::kRebias)));
  const __m256 magic = _mm256_set1_ps(Format::kMagic);
  const __m256i subnormal =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(magnitude, magic)), _mm256_castps_si256(magic));
  const __m256 small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(Format::kNormalMin), _CMP_LT_OQ);
  __m256 code = _mm256_blendv_ps(_mm256_castsi256_ps(normal), _mm256_castsi256_ps(subnormal), small);
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  code = _mm256_blendv_ps(code, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F)), nan);
  store8_bytes(to, _mm256_or_si256(_mm256_castps_si256(code), sign));
}

// code_of in eight lanes of int32: the operand order of max gives -127 for NaN.
inline __m256i code_of8(__m256 value) {
  value = _mm256_max_ps(value, _mm256_set1_ps(-kCodeMax));
  return _mm256_cvtps_epi32(_mm256_min_ps(value, _mm256_set1_ps(kCodeMax)));
}

// One group of 32 values; returns the scale.
inline float quantise_group8(const __m256 x[4], int8_t* codes) {
  __m256 largest = _mm256_setzero_ps();
  INGOT_UNROLL
  for (int i = 0; i < 4; ++i) largest = _mm256_max_ps(magnitude8(x[i]), largest);  // NaN leaves `largest`
  const float a = max_reduce8(largest);
  auto* to = reinterpret_cast<__m256i*>(codes);
  if (a < kQuantiseMin) {
    _mm256_storeu_si256(to, _mm256_setzero_si256());
    return 0.0f;
  }
  const __m256 inverse = _mm256_set1_ps(kCodeMax / a);
  __m256i code[4];
  INGOT_UNROLL
  for (int i = 0; i < 4; ++i) code[i] = code_of8(_mm256_mul_ps(x[i], inverse));
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
  _mm256_storeu_si256(to, _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  return a / kCodeMax;
}

// --- functions
// ----------------------------------------------------------------------------------------------

inline __m256 exp8(__m256 x) {
  const __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(kExpMin), _CMP_LT_OQ);
  x = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);  // the operand order keeps NaN
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(kLn2Low), r);
  __m256 p = _mm256_set1_ps(kExpPolynomial[0]);
  INGOT_UNROLL
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpPolynomial[i]));
  const __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_andnot_ps(zero, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent)));
}

inline __m256 silu8(__m256 gate) {
  const __m256 e = exp8(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
  return _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

inline void rope_head8(float* head, const float* row, uint32_t pairs) {
  for (uint32_t p = 0; p < pairs; p += kLanes) {
    const __m256i lanes = first_lanes(pairs - p < kLanes ? pairs - p : kLanes);
    const __m256 a = _mm256_maskload_ps(head + p, lanes), b = _mm256_maskload_ps(head + p + pairs, lanes);
    const __m256 cosine = _mm256_maskload_ps(row + p, lanes);
    const __m256 sine = _mm256_maskload_ps(row + p + pairs, lanes);
    _mm256_maskstore_ps(head + p, lanes, _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine)));
    _mm256_maskstore_ps(head + p + pairs, lanes, _mm256_fmadd_ps(b, cosine, _mm256_mul_ps(a, sine)));
  }
}

}  // namespace
}  // namespace ingot::cpu
