// embed: the rows of a panel-packed table that the tokens name, as float32. Bound by the latency of gathering
// from 64-byte lines, so one portable code serves every ISA.
#include <cstring>

#include "linear.h"
#include "math.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

// `value(panel, k, lane)` decodes one weight of the panel that holds a token's row.
template <typename Value>
void embed(const KernelArgs& args, uint32_t bytes_per_64_k, uint32_t k_multiple, uint32_t begin, uint32_t end,
           Value value) {
  namespace at = plan::operand::embed_e4m3;
  const auto* tokens = reinterpret_cast<const uint32_t*>(args.operand[at::kTokens].data);
  const auto* weight = reinterpret_cast<const uint8_t*>(args.operand[at::kWeight].data);
  auto* out = reinterpret_cast<float*>(args.operand[at::kOut].data);
  const uint32_t hidden = args.operand[at::kOut].dims[1];
  const uint64_t width = (uint64_t{hidden} + k_multiple - 1) / k_multiple * k_multiple;
  const uint64_t panel_bytes = width * bytes_per_64_k / 64;
  for (uint32_t row = begin; row < end; ++row) {
    const uint32_t token = tokens[row];
    const uint8_t* panel = weight + (token / plan::kPanelOutputs) * panel_bytes;
    float* y = out + size_t{row} * hidden;
    for (uint32_t k = 0; k < hidden; ++k) y[k] = value(panel, k, token);
  }
}

}  // namespace

void embed_i8(const KernelArgs& args, uint32_t begin, uint32_t end) {
  embed(args, kI8BytesPer64K, plan::kI8Block, begin, end,
        [](const uint8_t* panel, uint32_t k, uint32_t token) {
          const uint32_t lane = token % plan::kPanelOutputs;
          const uint8_t* block = panel + size_t{k / plan::kI8Block} * plan::kI8BlockBytes;
          const uint32_t in_block = k % plan::kI8Block;
          uint16_t scale;
          std::memcpy(&scale, block + (in_block / plan::kI8Group) * 32 + lane * 2, sizeof scale);
          const auto code = static_cast<int8_t>(block[64 + (in_block / 4) * 64 + lane * 4 + in_block % 4]);
          return static_cast<float>(code) * f16_decode(scale);
        });
}

void embed_e4m3(const KernelArgs& args, uint32_t begin, uint32_t end) {
  const auto* scale =
      reinterpret_cast<const float*>(args.operand[plan::operand::embed_e4m3::kWeightScale].data);
  embed(args, kE4m3BytesPer64K, 16, begin, end, [scale](const uint8_t* panel, uint32_t k, uint32_t token) {
    const uint32_t lane = token % plan::kPanelOutputs;
    return e4m3_decode(panel[(k / 4) * 64 + lane * 4 + k % 4]) * scale[token];
  });
}

void embed_bf16(const KernelArgs& args, uint32_t begin, uint32_t end) {
  embed(args, kBf16BytesPer64K, 16, begin, end, [](const uint8_t* panel, uint32_t k, uint32_t token) {
    uint16_t code;
    std::memcpy(&code, panel + (k / 2) * 64 + ((token % plan::kPanelOutputs) * 2 + k % 2) * 2, sizeof code);
    return bf16_decode(code);
  });
}

}  // namespace ingot::cpu
