// The scalar arithmetic that every CPU kernel is defined by: number formats, exp, sum16, rms_norm, quantise
// and rope, exactly as runtime/README.md (rounding rules) has them. The vector headers (math_avx2.h) give the
// same bits. Everything has internal linkage: each translation unit is compiled for its own ISA and must not
// share code with another.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "../../../plans/generated/plan_layout.h"

namespace ingot::cpu {
namespace {

constexpr float kExpMin = -87.0f;  // exp_ of less is 0
constexpr float kExpMax = 88.0f;   // exp_ of more is exp_ of this
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2High = -0.693359375f;  // Cody-Waite: ln 2 = 0.693359375 - 2.12194440e-4
constexpr float kLn2Low = 2.12194440e-4f;
constexpr float kExpPolynomial[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

constexpr float kQuantiseMin = 1e-30f;  // a group whose largest |x| is below has scale 0
constexpr float kCodeMax = 127.0f;
constexpr float kF16Max = 65504.0f;

// --- number formats
// -----------------------------------------------------------------------------------------

inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

inline float bf16_decode(uint16_t code) { return float_of(uint32_t{code} << 16); }

inline uint16_t bf16_encode(float value) {
  const uint32_t bits = bits_of(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, whatever the payload
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Exact; a signalling NaN becomes quiet.
inline float f16_decode(uint16_t code) {
  const uint32_t sign = uint32_t{code & 0x8000u} << 16;
  const uint32_t magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00) {
    const uint32_t quiet = magnitude > 0x7C00 ? 0x400000u : 0u;
    return float_of(sign | 0x7F800000u | ((magnitude & 0x3FF) << 13) | quiet);
  }
  // The bits placed as a binary32 stand for value * 2^-112, subnormal or not; the product is exact.
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

// Round to nearest even of 0 <= value, saturated to 65504; value is no NaN.
inline uint16_t f16_encode_scale(float value) {
  if (value > kF16Max) value = kF16Max;
  if (value < 0x1p-14f) return static_cast<uint16_t>(bits_of(value + 0x1p-1f) - bits_of(0x1p-1f));
  const uint32_t bits = bits_of(value);
  return static_cast<uint16_t>(((bits + 0xFFF + ((bits >> 13) & 1)) >> 13) - (112u << 10));
}

// An 8-bit float of `kMantissa` bits of mantissa: nearest even, saturated; NaN gives 0x7F with its sign.
// Below the smallest normal number, adding `kMagic` rounds to a multiple of the subnormal step.
template <uint32_t kMantissa, uint32_t kBias>
struct Float8 {
  static constexpr uint32_t kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = (127 - kBias) << kMantissa;
  static constexpr float kMax = kMantissa == 3 ? 448.0f : 57344.0f;
  static constexpr float kNormalMin = kMantissa == 3 ? 0x1p-6f : 0x1p-14f;
  static constexpr float kMagic = kMantissa == 3 ? 0x1p14f : 0x1p7f;
};
using E4m3 = Float8<3, 7>;
using E5m2 = Float8<2, 15>;

template <typename Format>
inline uint8_t float8_encode(float value) {
  const uint32_t sign = (bits_of(value) >> 24) & 0x80;
  if (value != value) return static_cast<uint8_t>(sign | 0x7F);
  float magnitude = std::fabs(value);
  if (magnitude > Format::kMax) magnitude = Format::kMax;
  if (magnitude < Format::kNormalMin) {
    return static_cast<uint8_t>(sign | (bits_of(magnitude + Format::kMagic) - bits_of(Format::kMagic)));
  }
  const uint32_t bits = bits_of(magnitude);
  const uint32_t even = (bits >> Format::kShift) & 1;
  const uint32_t rounded = (bits + (1u << (Format::kShift - 1)) - 1 + even) >> Format::kShift;
  return static_cast<uint8_t>(sign | (rounded - Format::kRebias));
}

// The code's bits at bits 31 and 26..20 of a binary32: value * 2^-120 (a NaN code gives 480 * 2^-120).
inline float e4m3_place(uint8_t code) {
  return float_of((uint32_t{code & 0x80u} << 24) | (uint32_t{code & 0x7Fu} << 20));
}

inline float e4m3_decode(uint8_t code) {
  if ((code & 0x7F) == 0x7F) return float_of((uint32_t{code & 0x80u} << 24) | 0x7FC00000u);
  return e4m3_place(code) * 0x1p120f;
}

inline float e5m2_decode(uint8_t code) { return f16_decode(static_cast<uint16_t>(code << 8)); }

// --- functions
// ----------------------------------------------------------------------------------------------

// Cephes expf, to within 2 ulp between the limits.
inline float exp_(float x) {
  if (x != x) return x + x;
  if (x < kExpMin) return 0.0f;
  if (x > kExpMax) x = kExpMax;
  const float n = std::rint(x * kLog2E);
  float r = std::fma(n, kLn2High, x);
  r = std::fma(n, kLn2Low, r);
  float p = kExpPolynomial[0];
  for (uint32_t i = 1; i < 6; ++i) p = std::fma(p, r, kExpPolynomial[i]);
  const float y = std::fma(p, r * r, r) + 1.0f;
  return float_of(bits_of(y) + (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
}

inline float silu(float gate) { return gate / (1.0f + exp_(-gate)); }

// The sixteen chains of sum16, halved until one is left.
inline float sum16_reduce(float s[16]) {
  for (uint32_t half = 8; half >= 1; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) s[i] += s[i + half];
  }
  return s[0];
}

// 1 / sqrt(mean of squares + eps)
inline float rms_factor(const float* x, uint32_t n, float eps) {
  float s[16] = {};
  for (uint32_t i = 0; i < n; ++i) s[i % 16] = std::fma(x[i], x[i], s[i % 16]);
  return 1.0f / std::sqrt(sum16_reduce(s) / static_cast<float>(n) + eps);
}

// Largest |x|, NaN left out.
inline float max_magnitude(const float* x, uint32_t n) {
  float a = 0.0f;
  for (uint32_t i = 0; i < n; ++i) a = std::fabs(x[i]) > a ? std::fabs(x[i]) : a;
  return a;
}

// Nearest integer, ties to even, within -127..127; NaN gives -127.
inline int8_t code_of(float value) {
  value = value > -kCodeMax ? value : -kCodeMax;
  value = value < kCodeMax ? value : kCodeMax;
  return static_cast<int8_t>(static_cast<int32_t>(std::rint(value)));
}

// One group of `n` <= 32 values; the codes of the missing ones are 0. Returns the scale.
inline float quantise_group(const float* x, uint32_t n, int8_t* codes) {
  const float a = max_magnitude(x, n);
  const float inverse = a < kQuantiseMin ? 0.0f : kCodeMax / a;
  for (uint32_t i = 0; i < plan::kI8Group; ++i) {
    codes[i] = i < n && a >= kQuantiseMin ? code_of(x[i] * inverse) : int8_t{0};
  }
  return a < kQuantiseMin ? 0.0f : a / kCodeMax;
}

// Half-split rotation of one head in place: elements (p, p + pairs) by angle p; row is cosines, then sines.
inline void rope_head(float* head, const float* row, uint32_t pairs) {
  for (uint32_t p = 0; p < pairs; ++p) {
    const float a = head[p], b = head[p + pairs];
    const float cosine = row[p], sine = row[pairs + p];
    head[p] = std::fma(a, cosine, -(b * sine));
    head[p + pairs] = std::fma(b, cosine, a * sine);
  }
}

}  // namespace
}  // namespace ingot::cpu
