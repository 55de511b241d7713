// linear_e4m3 in portable C++: E4M3 weights with a float32 scale per output, float32 activations. The
// definition of the vector kernels' bits.
#include "linear_scalar.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

void dot_e4m3(const Linear& l, uint32_t panel, uint32_t row, float sums[plan::kPanelOutputs]) {
  const auto weight = [](const uint8_t* codes, uint32_t k, uint32_t lane) {
    return e4m3_place(codes[(k / 4) * 64 + lane * 4 + k % 4]);
  };
  linear_chains(l, panel, row, weight, sums);
  for (uint32_t lane = 0; lane < plan::kPanelOutputs; ++lane) {
    sums[lane] *= l.scale[panel * plan::kPanelOutputs + lane] * 0x1p20f;
  }
}

}  // namespace

void linear_e4m3_input_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_float_input(linear_of(args, kE4m3BytesPer64K), kE4m3InputScale, begin, end);
}

void linear_e4m3_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items(linear_of(args, kE4m3BytesPer64K), args.rows, begin, end, dot_e4m3);
}

}  // namespace ingot::cpu
