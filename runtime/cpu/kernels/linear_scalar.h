// What the scalar linear kernels share: the normalised input and the epilogue.
#pragma once

#include "linear.h"
#include "math.h"

namespace ingot::cpu {
namespace {

// Input element i of a row, normalised: `factor` is rms_factor with a norm.
inline float linear_input(const Linear& l, const float* x, uint32_t i, float factor) {
  return l.norm == nullptr ? x[i] : (x[i] * factor) * l.norm[i];
}

inline float linear_factor(const Linear& l, const float* x) {
  return l.norm == nullptr ? 1.0f : rms_factor(x, l.k, l.eps);
}

// Phase 1 of the float formats: the input times `scale`, padded with zeros.
inline void linear_float_input(Linear l, float scale, uint32_t begin, uint32_t end) {
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = l.input(row);
    const float factor = linear_factor(l, x);
    float* y = l.float_row(row);
    for (uint32_t i = 0; i < l.k; ++i) y[i] = linear_input(l, x, i, factor) * scale;
    for (uint32_t i = l.k; i < l.width; ++i) y[i] = 0.0f;
  }
}

// Bias, silu_mul and residual over the 16 sums of each panel of an item.
inline void linear_epilogue(const Linear& l, uint32_t item, uint32_t row, float sums[2][16]) {
  const size_t first = size_t{row} * l.outputs + size_t{item} * plan::kPanelOutputs;
  for (uint32_t lane = 0; lane < l.lanes(item); ++lane) {
    float value = sums[0][lane];
    if (l.bias != nullptr) value += l.bias[l.panel_of(item, 0) * plan::kPanelOutputs + lane];
    if (l.paired) {
      float up = sums[1][lane];
      if (l.bias != nullptr) up += l.bias[l.panel_of(item, 1) * plan::kPanelOutputs + lane];
      value = silu(value) * up;
    }
    if (l.residual != nullptr) value = l.residual[first + lane] + value;
    l.out[first + lane] = value;
  }
}

// Phase 2: `dot(l, panel, row, sums)` gives the 16 sums of one panel for one row.
template <typename Dot>
inline void linear_items(const Linear& l, uint32_t rows, uint32_t begin, uint32_t end, Dot dot) {
  for (uint32_t item = begin; item < end; ++item) {
    for (uint32_t row = 0; row < rows; ++row) {
      float sums[2][plan::kPanelOutputs];
      dot(l, l.panel_of(item, 0), row, sums[0]);
      if (l.paired) dot(l, l.panel_of(item, 1), row, sums[1]);
      linear_epilogue(l, item, row, sums);
    }
  }
}

// Four chains by k % 4: `weight(panel, k, lane)` is the value that a code stands for.
template <typename Weight>
inline void linear_chains(const Linear& l, uint32_t panel, uint32_t row, Weight weight,
                          float sums[plan::kPanelOutputs]) {
  const uint8_t* codes = l.panel(panel);
  const float* x = l.float_row(row);
  float chain[4][plan::kPanelOutputs] = {};
  for (uint32_t k = 0; k < l.width; ++k) {
    float* c = chain[k % 4];
    for (uint32_t lane = 0; lane < plan::kPanelOutputs; ++lane) {
      c[lane] = std::fma(weight(codes, k, lane), x[k], c[lane]);
    }
  }
  for (uint32_t lane = 0; lane < plan::kPanelOutputs; ++lane) {
    sums[lane] = (chain[0][lane] + chain[1][lane]) + (chain[2][lane] + chain[3][lane]);
  }
}

}  // namespace
}  // namespace ingot::cpu
