// A linear command's operands under names. A weight panel holds 16 outputs side by side over the padded input
// width (layout.panel_bytes); a panel pair is the gate and the up panel of the same outputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../kernel.h"

namespace ingot::cpu {
namespace {

struct Linear {
  const float* x;             // (E, k)
  const std::byte* weight;    // panels
  const float* norm;          // (k) or null
  const float* bias;          // (U), panel order, or null
  const float* residual;      // (R, outputs) or null
  const uint32_t* row_index;  // row r of the input is x[row_index[r]], or null
  std::byte* activation;      // (R, width) int8 or float
  float* out;                 // (R, outputs)
  float* scale;               // i8: activation_scale (R, width / 32); e4m3: weight_scale (U); bf16: null
  uint32_t k, width, outputs;
  uint64_t panel_bytes;
  float eps;
  bool paired;  // an item is a pair of panels

  const float* input(uint32_t row) const {
    return x + size_t{row_index == nullptr ? row : row_index[row]} * k;
  }
  // Panel 0 or 1 of an item; 1 only when paired.
  uint32_t panel_of(uint32_t item, uint32_t part) const { return paired ? 2 * item + part : item; }
  const uint8_t* panel(uint32_t index) const {
    return reinterpret_cast<const uint8_t*>(weight + index * panel_bytes);
  }
  const float* float_row(uint32_t row) const {
    return reinterpret_cast<const float*>(activation) + size_t{row} * width;
  }
  float* float_row(uint32_t row) { return reinterpret_cast<float*>(activation) + size_t{row} * width; }
  const int8_t* code_row(uint32_t row) const {
    return reinterpret_cast<const int8_t*>(activation) + size_t{row} * width;
  }
  int8_t* code_row(uint32_t row) { return reinterpret_cast<int8_t*>(activation) + size_t{row} * width; }
  float* scale_row(uint32_t row) const { return scale + size_t{row} * (width / plan::kI8Group); }
  // Outputs of an item that exist: 16, fewer in the last.
  uint32_t lanes(uint32_t item) const {
    const uint32_t left = outputs - item * plan::kPanelOutputs;
    return left < plan::kPanelOutputs ? left : plan::kPanelOutputs;
  }
};

// `bytes_per_64_k`: bytes of a panel for 64 k, one of the constants below.
inline Linear linear_of(const KernelArgs& args, uint32_t bytes_per_64_k) {
  namespace at = plan::operand::linear_i8;
  static_assert(at::kOut == uint32_t{plan::operand::linear_e4m3::kOut});
  static_assert(at::kActivationScale == uint32_t{plan::operand::linear_e4m3::kWeightScale});
  static_assert(at::kOut == uint32_t{plan::operand::linear_bf16::kOut});
  const auto floats = [&](uint32_t i) { return reinterpret_cast<float*>(args.operand[i].data); };
  Linear l;
  l.x = floats(at::kX);
  l.weight = args.operand[at::kWeight].data;
  l.norm = floats(at::kNorm);
  l.bias = floats(at::kBias);
  l.residual = floats(at::kResidual);
  l.row_index = reinterpret_cast<const uint32_t*>(args.operand[at::kRowIndex].data);
  l.activation = args.operand[at::kActivation].data;
  l.out = floats(at::kOut);
  l.scale = floats(at::kActivationScale);
  l.k = args.operand[at::kX].dims[1];
  l.width = args.operand[at::kActivation].dims[1];
  l.outputs = args.operand[at::kOut].dims[1];
  l.panel_bytes = uint64_t{l.width} * bytes_per_64_k / 64;
  l.eps = args.f[0];
  l.paired = (args.flags & plan::kFlagSiluMul) != 0;
  return l;
}

constexpr uint32_t kI8BytesPer64K = plan::kI8BlockBytes;
constexpr uint32_t kE4m3BytesPer64K = 64 * plan::kPanelOutputs;
constexpr uint32_t kBf16BytesPer64K = 64 * plan::kPanelOutputs * 2;
constexpr float kE4m3InputScale = 0x1p100f;  // against e4m3_place's 2^-120; the result takes 2^20

}  // namespace
}  // namespace ingot::cpu
