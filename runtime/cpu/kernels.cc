// The registry of CPU kernels: for each ISA, each kernel's phases and the items that workers divide. All ISAs
// give the same bits (runtime/README.md, rounding rules); the scalar kernels define them.
#include "kernel.h"
#include "kernels/phases.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ingot::cpu {
namespace {

using plan::Kernel;

uint32_t rows(const KernelArgs& args) { return args.rows; }

// Panels of 16 outputs, or pairs of them.
uint32_t panels(const KernelArgs& args) {
  const uint32_t outputs = args.operand[plan::operand::linear_i8::kOut].dims[1];
  return (outputs + plan::kPanelOutputs - 1) / plan::kPanelOutputs;
}

// Query heads of all rows.
uint32_t row_heads(const KernelArgs& args) {
  namespace at = plan::operand::attention_i8;
  return args.rows * (args.operand[at::kQ].dims[1] / args.operand[at::kK].dims[1]);
}

constexpr KernelEntry kScalar[] = {
    {Kernel::kEmbedI8, 1, {{rows, embed_i8}}},
    {Kernel::kEmbedE4m3, 1, {{rows, embed_e4m3}}},
    {Kernel::kEmbedBf16, 1, {{rows, embed_bf16}}},
    {Kernel::kRopeTable, 1, {{rows, rope_table_scalar}}},
    {Kernel::kLinearI8, 2, {{rows, linear_i8_input_scalar}, {panels, linear_i8_scalar}}},
    {Kernel::kLinearE4m3, 2, {{rows, linear_e4m3_input_scalar}, {panels, linear_e4m3_scalar}}},
    {Kernel::kLinearBf16, 2, {{rows, linear_bf16_input_scalar}, {panels, linear_bf16_scalar}}},
    {Kernel::kAttentionI8, 2, {{rows, attention_i8_write_scalar}, {row_heads, attention_i8_scalar}}},
    {Kernel::kAttentionE4m3, 2, {{rows, attention_e4m3_write_scalar}, {row_heads, attention_e4m3_scalar}}},
    {Kernel::kAttentionE5m2, 2, {{rows, attention_e5m2_write_scalar}, {row_heads, attention_e5m2_scalar}}},
    {Kernel::kAttentionBf16, 2, {{rows, attention_bf16_write_scalar}, {row_heads, attention_bf16_scalar}}},
};

#if defined(__x86_64__)
// In vectors where that is faster; the rest is shared.
constexpr KernelEntry kAvx2[] = {
    {Kernel::kEmbedI8, 1, {{rows, embed_i8}}},
    {Kernel::kEmbedE4m3, 1, {{rows, embed_e4m3}}},
    {Kernel::kEmbedBf16, 1, {{rows, embed_bf16}}},
    {Kernel::kRopeTable, 1, {{rows, rope_table_avx2}}},
    {Kernel::kLinearI8, 2, {{rows, linear_i8_input_avx2}, {panels, linear_i8_avx2}}},
    {Kernel::kLinearE4m3, 2, {{rows, linear_e4m3_input_avx2}, {panels, linear_e4m3_avx2}}},
    {Kernel::kLinearBf16, 2, {{rows, linear_bf16_input_avx2}, {panels, linear_bf16_avx2}}},
    {Kernel::kAttentionI8, 2, {{rows, attention_i8_write_avx2}, {row_heads, attention_i8_avx2}}},
    {Kernel::kAttentionE4m3, 2, {{rows, attention_e4m3_write_avx2}, {row_heads, attention_e4m3_avx2}}},
    {Kernel::kAttentionE5m2, 2, {{rows, attention_e5m2_write_avx2}, {row_heads, attention_e5m2_avx2}}},
    {Kernel::kAttentionBf16, 2, {{rows, attention_bf16_write_avx2}, {row_heads, attention_bf16_avx2}}},
};

bool has_f16c() {
  uint32_t a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
#if defined(__x86_64__)
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#else
      return false;
#endif
  }
  return false;
}

std::span<const KernelEntry> kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2;
#endif
  return isa == Isa::kScalar ? std::span<const KernelEntry>(kScalar) : std::span<const KernelEntry>();
}

}  // namespace ingot::cpu
