// What the AVX2 linear kernels share: the normalised input, the blocking of rows and the epilogue. A panel
// stays in the nearest cache while chunks of a few rows pass over it; with one row it is read once, in order.
#pragma once

#include "linear.h"
#include "math_avx2.h"

namespace ingot::cpu {
namespace {

constexpr uint32_t kRowsMax = 6;  // rows of a chunk

inline float linear_factor8(const Linear& l, const float* x) {
  return l.norm == nullptr ? 1.0f : rms_factor8(x, l.k, l.eps);
}

// Elements i..i + 7 of the normalised input; those from k on are 0.
inline __m256 linear_input8(const Linear& l, const float* x, uint32_t i, __m256 factor) {
  const uint32_t left = i >= l.k ? 0 : l.k - i;
  const __m256i lanes = first_lanes(left < kLanes ? left : kLanes);
  const __m256 value = left >= kLanes ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lanes);
  if (l.norm == nullptr) return value;
  const __m256 norm = left >= kLanes ? _mm256_loadu_ps(l.norm + i) : _mm256_maskload_ps(l.norm + i, lanes);
  const __m256 y = _mm256_mul_ps(_mm256_mul_ps(value, factor), norm);
  return _mm256_and_ps(y, _mm256_castsi256_ps(lanes));  // 0 * inf would not be 0
}

inline void linear_float_input8(Linear l, float scale, uint32_t begin, uint32_t end) {
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = l.input(row);
    const __m256 factor = _mm256_set1_ps(linear_factor8(l, x));
    float* y = l.float_row(row);
    for (uint32_t i = 0; i < l.width; i += kLanes) {
      _mm256_storeu_ps(y + i, _mm256_mul_ps(linear_input8(l, x, i, factor), _mm256_set1_ps(scale)));
    }
  }
}

// Bias, silu_mul and residual over the sums of an item's panels for one row.
inline void linear_epilogue8(const Linear& l, uint32_t item, uint32_t row, const float* gate,
                             const float* up) {
  const size_t first = size_t{row} * l.outputs + size_t{item} * plan::kPanelOutputs;
  const uint32_t lanes = l.lanes(item);
  for (uint32_t i = 0; i < lanes; i += kLanes) {
    const uint32_t count = lanes - i < kLanes ? lanes - i : kLanes;
    __m256 value = _mm256_loadu_ps(gate + i);
    if (l.bias != nullptr) {
      value = _mm256_add_ps(value, _mm256_loadu_ps(l.bias + l.panel_of(item, 0) * plan::kPanelOutputs + i));
    }
    if (l.paired) {
      __m256 other = _mm256_loadu_ps(up + i);
      if (l.bias != nullptr) {
        other = _mm256_add_ps(other, _mm256_loadu_ps(l.bias + l.panel_of(item, 1) * plan::kPanelOutputs + i));
      }
      value = _mm256_mul_ps(silu8(value), other);
    }
    const __m256i mask = first_lanes(count);
    if (l.residual != nullptr) {
      value = _mm256_add_ps(_mm256_maskload_ps(l.residual + first + i, mask), value);
    }
    if (count == kLanes) {
      _mm256_storeu_ps(l.out + first + i, value);
    } else {
      _mm256_maskstore_ps(l.out + first + i, mask, value);
    }
  }
}

// Phase 2. `Dot::run<kRows>(l, panel, row, sums)` gives 16 sums for each of kRows rows from `row` on. Rows
// are cut into chunks of nearly the same size, at most kRowsMax.
template <typename Dot>
inline void linear_chunk(const Linear& l, uint32_t panel, uint32_t row, uint32_t count,
                         float (*sums)[plan::kPanelOutputs]) {
  if (count == 1) return Dot::template run<1>(l, panel, row, sums);
  if (count == 2) return Dot::template run<2>(l, panel, row, sums);
  if (count == 3) return Dot::template run<3>(l, panel, row, sums);
  if (count == 4) return Dot::template run<4>(l, panel, row, sums);
  if constexpr (Dot::kRows > 4) {
    if (count == 5) return Dot::template run<5>(l, panel, row, sums);
    return Dot::template run<6>(l, panel, row, sums);
  }
}

template <typename Dot>
inline void linear_items8(const Linear& l, uint32_t rows, uint32_t begin, uint32_t end) {
  static_assert(Dot::kRows == 4 || Dot::kRows == kRowsMax);
  const uint32_t chunks = (rows + Dot::kRows - 1) / Dot::kRows;
  alignas(32) float sums[2][kRowsMax][plan::kPanelOutputs];
  for (uint32_t item = begin; item < end; ++item) {
    uint32_t row = 0;
    for (uint32_t chunk = chunks; chunk > 0; --chunk) {
      const uint32_t count = (rows - row + chunk - 1) / chunk;
      linear_chunk<Dot>(l, l.panel_of(item, 0), row, count, sums[0]);
      if (l.paired) linear_chunk<Dot>(l, l.panel_of(item, 1), row, count, sums[1]);
      for (uint32_t r = 0; r < count; ++r) linear_epilogue8(l, item, row + r, sums[0][r], sums[1][r]);
      row += count;
    }
  }
}

}  // namespace
}  // namespace ingot::cpu
