// linear_i8 in portable C++: int8 weights in groups of 32 with float16 scales, int8 activations per row and
// group. The definition of the vector kernels' bits.
#include <cstring>

#include "linear_scalar.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

// One chain over groups of the exact integer products.
void dot_i8(const Linear& l, uint32_t panel, uint32_t row, float sums[plan::kPanelOutputs]) {
  const int8_t* x = l.code_row(row);
  const float* x_scale = l.scale_row(row);
  for (uint32_t lane = 0; lane < plan::kPanelOutputs; ++lane) sums[lane] = 0.0f;
  for (uint32_t group = 0; group < l.width / plan::kI8Group; ++group) {
    const uint8_t* block = l.panel(panel) + size_t{group / 2} * plan::kI8BlockBytes;
    const uint8_t* lines = block + 64 + size_t{group % 2} * 8 * 64;
    for (uint32_t lane = 0; lane < plan::kPanelOutputs; ++lane) {
      int32_t dot = 0;
      for (uint32_t k = 0; k < plan::kI8Group; ++k) {
        const auto code = static_cast<int8_t>(lines[(k / 4) * 64 + lane * 4 + k % 4]);
        dot += int32_t{code} * x[group * plan::kI8Group + k];
      }
      uint16_t scale;
      std::memcpy(&scale, block + (group % 2) * 32 + lane * 2, sizeof scale);
      sums[lane] = std::fma(static_cast<float>(dot), f16_decode(scale) * x_scale[group], sums[lane]);
    }
  }
}

}  // namespace

void linear_i8_input_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  Linear l = linear_of(args, kI8BytesPer64K);
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = l.input(row);
    const float factor = linear_factor(l, x);
    for (uint32_t group = 0; group < l.width / plan::kI8Group; ++group) {
      const uint32_t first = group * plan::kI8Group;
      const uint32_t count = first >= l.k ? 0 : std::min(l.k - first, plan::kI8Group);
      float y[plan::kI8Group];
      for (uint32_t i = 0; i < count; ++i) y[i] = linear_input(l, x, first + i, factor);
      l.scale_row(row)[group] = quantise_group(y, count, l.code_row(row) + first);
    }
  }
}

void linear_i8_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items(linear_of(args, kI8BytesPer64K), args.rows, begin, end, dot_i8);
}

}  // namespace ingot::cpu
