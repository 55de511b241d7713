#include "plan_walk.h"

namespace ingot::test {
namespace {

using plan::Dtype;
using plan::Kernel;
using plan::Region;
using plan::Unit;
using Wide = unsigned __int128;  // no product or sum of 64-bit sizes here wraps

// Sizes that commands of one program share, as runtime/README.md names them.
struct Sizes {
  Wide rows, rows_max, head_rows_max, hidden, vocabulary, query, qkv, kv_heads, head_size, pairs, context;
};

Sizes sizes_of(const plan::Header& header, const plan::ProgramRecord& program) {
  const Wide query = Wide{header.query_heads} * header.head_size;
  return {program.rows,
          header.rows_max,
          header.head_rows_max,
          header.hidden,
          header.vocabulary,
          query,
          query + Wide{2} * header.kv_heads * header.head_size,
          header.kv_heads,
          header.head_size,
          header.rotary_pairs,
          header.context};
}

Wide whole(Wide value, Wide multiple) { return (value + multiple - 1) / multiple * multiple; }

// Bytes that a region reserves when opened with these counts.
Wide reserved(const plan::RegionRecord& region, uint64_t granules, uint64_t requests) {
  return whole(region.bytes_fixed, 4096) + whole(Wide{region.bytes_per_granule} * granules, 4096) +
         whole(Wide{region.bytes_per_request} * requests, 4096);
}

// Whether every instance of the tensor lies in its region (README, Addresses).
bool lies_inside(const PlanView& view, const plan::TensorRecord& tensor, uint64_t granules,
                 uint64_t requests) {
  const plan::RegionRecord& region = view.regions[tensor.region - 1u];
  Wide begin = tensor.offset;
  Wide end = region.bytes_fixed;  // of the part, then of the last instance's part
  if (static_cast<Unit>(tensor.unit) != Unit::kFixed) {
    begin += whole(region.bytes_fixed, 4096) + Wide{region.bytes_per_granule} * (granules - 1);
    end = whole(region.bytes_fixed, 4096) + Wide{region.bytes_per_granule} * granules;
  }
  if (static_cast<Unit>(tensor.unit) == Unit::kRequest) {
    const Wide base =
        whole(region.bytes_fixed, 4096) + whole(Wide{region.bytes_per_granule} * granules, 4096);
    begin = base + Wide{region.bytes_per_request} * (requests - 1) + tensor.offset;
    end = base + Wide{region.bytes_per_request} * requests;
  }
  return begin + tensor.bytes <= end && end <= reserved(region, granules, requests);
}

struct Operands {
  const PlanView& view;
  const plan::CommandRecord& command;

  const plan::TensorRecord* at(uint32_t position) const {
    const uint32_t t = command.tensors[position];
    return t == plan::kNoneIndex ? nullptr : &view.tensors[t];
  }
  // Whether the operand is absent, or holds `bytes`.
  bool holds(uint32_t position, Wide bytes) const {
    const plan::TensorRecord* tensor = at(position);
    return tensor == nullptr || bytes <= tensor->bytes;
  }
};

Wide weight_bytes(const plan::TensorRecord& weight) {
  const bool paired = static_cast<plan::Layout>(weight.layout) == plan::Layout::kPanelsPaired;
  const Wide outputs = weight.dims[0];
  const Wide panels = paired ? whole(outputs / 2, 16) / 8 : whole(outputs, 16) / 16;
  if (static_cast<Dtype>(weight.dtype) == Dtype::kI8) return panels * (whole(weight.dims[1], 64) / 64) * 1088;
  const Wide element = static_cast<Dtype>(weight.dtype) == Dtype::kBf16 ? 2 : 1;
  return panels * whole(weight.dims[1], 16) * 16 * element;
}

// Whether a linear's kernel stays inside its operands. The weight says how wide in and out are.
bool linear_stays_inside(const Operands& operands, const Sizes& sizes) {
  namespace position = plan::operand::linear_i8;  // the same positions in all three
  const plan::CommandRecord& command = operands.command;
  const plan::TensorRecord& weight = *operands.at(position::kWeight);
  const bool i8 = static_cast<Kernel>(command.kernel) == Kernel::kLinearI8;
  const Wide k = weight.dims[1];
  const Wide k_padded = whole(k, i8 ? 64 : 16);
  const bool pairs = (command.flags & plan::kFlagSiluMul) != 0;
  const Wide outputs = pairs ? weight.dims[0] / 2 : weight.dims[0];
  const Wide scales = whole(outputs, 16) * (pairs ? 2 : 1);
  const bool gathers = (command.flags & plan::kFlagGather) != 0;
  return operands.holds(position::kWeight, weight_bytes(weight)) &&
         operands.holds(position::kX, (gathers ? sizes.rows_max : sizes.rows) * k * 4) &&
         operands.holds(position::kNorm, k * 4) && operands.holds(position::kBias, scales * 4) &&
         operands.holds(position::kResidual, sizes.rows * outputs * 4) &&
         operands.holds(position::kRowIndex, sizes.rows * 4) &&
         operands.holds(position::kActivation, sizes.rows * k_padded * (i8 ? 1 : 4)) &&
         operands.holds(position::kOut, sizes.rows * outputs * 4) &&
         operands.holds(position::kActivationScale, i8 ? sizes.rows * (k_padded / 32) * 4 : scales * 4);
}

bool attention_stays_inside(const Operands& operands, const Sizes& sizes) {
  namespace position = plan::operand::attention_i8;  // without scales, the same in the others
  const Wide element = static_cast<Kernel>(operands.command.kernel) == Kernel::kAttentionBf16 ? 2 : 1;
  const Wide granule = sizes.kv_heads * 128 * sizes.head_size * element;
  return operands.holds(position::kQkv, sizes.rows * sizes.qkv * 4) &&
         operands.holds(position::kRope, sizes.rows * 2 * sizes.pairs * 4) &&
         operands.holds(position::kQNorm, sizes.head_size * 4) &&
         operands.holds(position::kKNorm, sizes.head_size * 4) &&
         operands.holds(position::kPositions, sizes.rows * 4) &&
         operands.holds(position::kLeases, sizes.rows * 4) &&
         operands.holds(position::kGranules, (sizes.context + 127) / 128 * 4) &&
         operands.holds(position::kK, granule) && operands.holds(position::kV, granule) &&
         operands.holds(position::kQ, sizes.rows * sizes.query * 4) &&
         operands.holds(position::kOut, sizes.rows * sizes.query * 4) &&
         operands.holds(position::kKScale, sizes.kv_heads * 128 * 2) &&
         operands.holds(position::kVScale, sizes.kv_heads * 128 * 2);
}

bool sample_stays_inside(const Operands& operands, const Sizes& sizes) {
  namespace position = plan::operand::sample;
  return operands.holds(position::kLogits, sizes.rows * sizes.vocabulary * 4) &&
         operands.holds(position::kRequests, sizes.rows * 4) &&
         operands.holds(position::kPositions, sizes.rows * 4) &&
         operands.holds(position::kSampling, sizeof(plan::SamplingRecord)) &&
         operands.holds(position::kTokenCounts, sizes.vocabulary * 2) &&
         operands.holds(position::kScratch, sizes.rows * 2 * sizes.vocabulary * 4) &&
         operands.holds(position::kOutTokens, sizes.rows * 4) &&
         operands.holds(position::kTopTokens, sizes.rows * 21 * 4) &&
         operands.holds(position::kTopLogprobs, sizes.rows * 21 * 4);
}

bool embed_stays_inside(const Operands& operands, const Sizes& sizes) {
  namespace position = plan::operand::embed_e4m3;  // without the scale, the same in the others
  const plan::TensorRecord& weight = *operands.at(position::kWeight);
  return operands.holds(position::kTokens, sizes.rows * 4) && weight.dims[0] >= sizes.vocabulary &&
         weight.dims[1] >= sizes.hidden && operands.holds(position::kWeight, weight_bytes(weight)) &&
         operands.holds(position::kOut, sizes.rows * sizes.hidden * 4) &&
         operands.holds(position::kWeightScale, whole(sizes.vocabulary, 16) * 4);
}

bool rope_table_stays_inside(const Operands& operands, const Sizes& sizes) {
  namespace position = plan::operand::rope_table;
  return operands.holds(position::kPositions, sizes.rows * 4) &&
         operands.holds(position::kInverseFrequency, sizes.pairs * 4) &&
         operands.holds(position::kOut, sizes.rows * 2 * sizes.pairs * 4);
}

bool kernel_stays_inside(const Operands& operands, const Sizes& sizes) {
  switch (static_cast<Kernel>(operands.command.kernel)) {
    case Kernel::kEmbedI8:
    case Kernel::kEmbedE4m3:
    case Kernel::kEmbedBf16:
      return embed_stays_inside(operands, sizes);
    case Kernel::kRopeTable:
      return rope_table_stays_inside(operands, sizes);
    case Kernel::kLinearI8:
    case Kernel::kLinearE4m3:
    case Kernel::kLinearBf16:
      return linear_stays_inside(operands, sizes);
    case Kernel::kAttentionI8:
    case Kernel::kAttentionE4m3:
    case Kernel::kAttentionE5m2:
    case Kernel::kAttentionBf16:
      return attention_stays_inside(operands, sizes);
    case Kernel::kSample:
      return sample_stays_inside(operands, sizes);
  }
  return false;
}

// Whether no two different arena operands of a command share a byte.
bool arena_disjoint(const Operands& operands) {
  for (uint32_t a = 0; a < plan::kCommandTensors; ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      const plan::TensorRecord* one = operands.at(a);
      const plan::TensorRecord* two = operands.at(b);
      if (one == nullptr || two == nullptr || one == two || one->region != two->region) continue;
      if (static_cast<Region>(one->region) != Region::kArena) continue;
      const bool apart =
          one->offset >= Wide{two->offset} + two->bytes || two->offset >= Wide{one->offset} + one->bytes;
      if (!apart) return false;
    }
  }
  return true;
}

}  // namespace

const char* walk(const PlanView& view) {
  const plan::Header& header = *view.header;
  for (const plan::ProgramRecord& program : view.programs) {
    const Sizes sizes = sizes_of(header, program);
    for (uint32_t i = 0; i < program.command_count; ++i) {
      const Operands operands{view, view.commands[program.command_begin + i]};
      for (uint32_t o = 0; o < plan::kCommandTensors; ++o) {
        const plan::TensorRecord* tensor = operands.at(o);
        if (tensor == nullptr) continue;
        if (!lies_inside(view, *tensor, 1, 1) ||
            !lies_inside(view, *tensor, header.granules_max, header.requests_max))
          return "INV-02: an operand reaches out of its region";
      }
      if (!kernel_stays_inside(operands, sizes)) return "INV-02: a kernel reaches out of its operand";
      if (!arena_disjoint(operands)) return "INV-03: two arena operands of a command share bytes";
    }
  }
  return nullptr;
}

}  // namespace ingot::test
