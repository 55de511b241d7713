// linear_bf16 in portable C++: bfloat16 weights, float32 activations. The definition of the vector kernels'
// bits.
#include <cstring>

#include "linear_scalar.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

void dot_bf16(const Linear& l, uint32_t panel, uint32_t row, float sums[plan::kPanelOutputs]) {
  const auto weight = [](const uint8_t* codes, uint32_t k, uint32_t lane) {
    uint16_t code;
    std::memcpy(&code, codes + (k / 2) * 64 + (lane * 2 + k % 2) * 2, sizeof code);
    return bf16_decode(code);
  };
  linear_chains(l, panel, row, weight, sums);
}

}  // namespace

void linear_bf16_input_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_float_input(linear_of(args, kBf16BytesPer64K), 1.0f, begin, end);
}

void linear_bf16_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items(linear_of(args, kBf16BytesPer64K), args.rows, begin, end, dot_bf16);
}

}  // namespace ingot::cpu
