// Steps 28 to 34 of plans/VERIFY.md: commands against the kernels' contracts, the runtime's tables, the
// self-test and the texts. After them every operand of every command is an allowed tensor that is alive and
// has the shape that its kernel reads and writes (INV-02).
#include <algorithm>
#include <string_view>

#include "plan_checks.h"

namespace ingot::checks {
namespace {

using plan::Family;
using plan::Kernel;
using plan::KernelSpec;
using plan::Layout;
using plan::OperandSpec;
using plan::Reason;
using plan::Region;

constexpr bool bit(uint32_t set, uint32_t member) { return member < 32 && (set >> member & 1) != 0; }

constexpr bool is_present(const OperandSpec& operand, uint32_t flags) {
  return operand.needs == 0 || (flags & operand.needs) != 0;
}

const KernelSpec& spec_of(const plan::CommandRecord& command) { return plan::kKernels[command.kernel - 1]; }

// Calls `good(program, command)` for every command, in order; `reason` with the first that is not.
template <typename Good>
Reason each_command(const PlanView& view, Reason reason, uint64_t* index, Good good) {
  for (const plan::ProgramRecord& program : view.programs) {
    for (uint64_t i = 0; i < program.command_count; ++i) {
      const uint64_t c = program.command_begin + i;
      if (!good(program, view.commands[c], c)) return refuse(reason, c, index);
    }
  }
  return Reason::kOk;
}

// --- fields
// -------------------------------------------------------------------------------------------------

bool family_allowed(Kernel kernel, uint32_t family) {
  switch (kernel) {
    case Kernel::kEmbedI8:
    case Kernel::kEmbedE4m3:
    case Kernel::kEmbedBf16:
    case Kernel::kRopeTable:
    case Kernel::kAttentionI8:
    case Kernel::kAttentionE4m3:
    case Kernel::kAttentionE5m2:
    case Kernel::kAttentionBf16:
      return static_cast<Family>(family) == Family::kBody;
    case Kernel::kSample:
      return static_cast<Family>(family) == Family::kHead;
    case Kernel::kLinearI8:
    case Kernel::kLinearE4m3:
    case Kernel::kLinearBf16:
      return true;
  }
  return false;
}

// `listed` has bit k when kernel k has a record.
bool fields_good(const PlanView& view, const plan::ProgramRecord& program, const plan::CommandRecord& command,
                 uint32_t listed) {
  if (!bit(listed, command.kernel)) return false;
  const KernelSpec& spec = spec_of(command);
  if (!family_allowed(spec.id, program.family) || (command.flags & ~spec.flags) != 0) return false;
  if ((command.flags & plan::kFlagGather) != 0 && static_cast<Family>(program.family) != Family::kHead)
    return false;
  if (command.layer >= view.header->layers && command.layer != plan::kNoneIndex) return false;
  for (uint32_t i = 0; i < std::size(command.f); ++i)
    if (i < spec.f_count ? !finite(command.f[i]) : std::bit_cast<uint32_t>(command.f[i]) != 0) return false;
  for (uint32_t i = spec.u_count; i < std::size(command.u); ++i)
    if (command.u[i] != 0) return false;
  return is_zero(command.padding);
}

Reason command_fields(PlanView& view, uint64_t* index) {
  static_assert(std::size(plan::kKernels) < 32, "a set of kernels fits 32 bits");
  uint32_t listed = 0;
  for (const plan::KernelRecord& kernel : view.kernels) listed |= 1u << kernel.id;
  return each_command(view, Reason::kBadCommandField, index,
                      [&](const auto& program, const auto& command, uint64_t) {
                        return fields_good(view, program, command, listed);
                      });
}

// --- operands
// -----------------------------------------------------------------------------------------------

constexpr uint32_t kNoTable = std::size(plan::kTableOperands);

// Entry of kTableOperands that the operand must be, or kNoTable; found at compile time for every kernel.
struct TableOf {
  uint32_t entry[std::size(plan::kKernels)][plan::kCommandTensors] = {};
};
constexpr TableOf find_tables() {
  TableOf found;
  for (uint32_t k = 0; k < std::size(plan::kKernels); ++k) {
    for (uint32_t o = 0; o < plan::kCommandTensors; ++o) {
      found.entry[k][o] = kNoTable;
      if (o >= plan::kKernels[k].operand_count) continue;
      const std::string_view name = plan::kKernels[k].operands[o].name;
      for (uint32_t i = 0; i < kNoTable; ++i)
        if (name == plan::kTableOperands[i].operand) found.entry[k][o] = i;
    }
  }
  return found;
}
constexpr TableOf kTableOf = find_tables();

bool operand_good(const PlanView& view, const plan::CommandRecord& command, uint32_t position,
                  Family family) {
  const OperandSpec& operand = spec_of(command).operands[position];
  if (command.tensors[position] >= view.tensors.size()) return false;
  const plan::TensorRecord& tensor = view.tensors[command.tensors[position]];
  if (!bit(operand.regions, tensor.region) || tensor.unit != static_cast<uint32_t>(operand.unit) ||
      tensor.dtype != static_cast<uint32_t>(operand.dtype) || !bit(operand.layouts, tensor.layout))
    return false;
  constexpr auto kPaired = static_cast<uint32_t>(Layout::kPanelsPaired);
  const bool silu_mul = (command.flags & plan::kFlagSiluMul) != 0;
  if (bit(operand.layouts, kPaired) && (tensor.layout == kPaired) != silu_mul) return false;
  const uint32_t table = kTableOf.entry[command.kernel - 1][position];
  if (table == kNoTable) return true;
  const plan::TableOperandSpec& names = plan::kTableOperands[table];
  return view.name(tensor) == (family == Family::kBody ? names.body : names.head);
}

Reason command_tensors(PlanView& view, uint64_t* index) {
  return each_command(
      view, Reason::kBadCommandTensor, index, [&](const auto& program, const auto& command, uint64_t) {
        const KernelSpec& spec = spec_of(command);
        for (uint32_t o = 0; o < plan::kCommandTensors; ++o) {
          const bool present = o < spec.operand_count && is_present(spec.operands[o], command.flags);
          if (present ? !operand_good(view, command, o, static_cast<Family>(program.family))
                      : command.tensors[o] != plan::kNoneIndex)
            return false;
        }
        return true;
      });
}

Reason command_lifetimes(PlanView& view, uint64_t* index) {
  return each_command(view, Reason::kBadCommandLifetime, index,
                      [&](const auto& program, const auto& command, uint64_t c) {
                        const KernelSpec& spec = spec_of(command);
                        for (uint32_t o = 0; o < spec.operand_count; ++o) {
                          if (!is_present(spec.operands[o], command.flags)) continue;
                          const uint32_t t = command.tensors[o];
                          const plan::TensorRecord& tensor = view.tensors[t];
                          if (tensor.region != static_cast<uint32_t>(Region::kArena)) continue;
                          if (t < program.tensor_begin || t - program.tensor_begin >= program.tensor_count)
                            return false;
                          if (!between(c, tensor.first_command, tensor.last_command)) return false;
                        }
                        return true;
                      });
}

// --- shapes
// -------------------------------------------------------------------------------------------------

constexpr std::string_view kFreeSymbols = "KNXZWU";

// Values of the symbols of layout.py's SYMBOLS; 0 while a free one is unbound (a dimension is at least 1).
class Symbols {
 public:
  explicit Symbols(const plan::Header& header) {
    (*this)['M'] = header.rows_max;
    (*this)['L'] = header.head_rows_max;
    (*this)['H'] = header.hidden;
    (*this)['V'] = header.vocabulary;
    (*this)['D'] = header.head_size;
    (*this)['G'] = header.kv_heads;
    (*this)['Q'] = uint64_t{header.query_heads} * header.head_size;
    (*this)['A'] = (header.query_heads + 2 * uint64_t{header.kv_heads}) * header.head_size;
    (*this)['P'] = header.rotary_pairs;
    (*this)['C'] = (uint64_t{header.context} + plan::kGranuleTokens - 1) / plan::kGranuleTokens;
    (*this)['S'] = header.context;
    (*this)['T'] = plan::kGranuleTokens;
    (*this)['2'] = 2;
    (*this)['B'] = 1 + plan::kTopLogprobsMax;
    (*this)['Y'] = sizeof(plan::SamplingRecord);
  }
  static constexpr bool known(char symbol) { return symbol == '2' || (symbol >= 'A' && symbol <= 'Z'); }
  uint64_t& operator[](char symbol) { return values_[symbol == '2' ? 26 : symbol - 'A']; }

 private:
  uint64_t values_[27] = {};
};

constexpr bool symbols_known() {
  for (const KernelSpec& spec : plan::kKernels)
    for (uint32_t o = 0; o < spec.operand_count; ++o)
      for (uint32_t i = 0; i < spec.operands[o].rank; ++i)
        if (!Symbols::known(spec.operands[o].dims[i])) return false;
  return true;
}
static_assert(symbols_known(), "every dimension of an operand is a symbol that Symbols can hold");

// Position of the operand named "weight", or kCommandTensors.
constexpr uint32_t weight_position(const KernelSpec& spec) {
  uint32_t o = 0;
  while (o < spec.operand_count && std::string_view(spec.operands[o].name) != "weight") ++o;
  return o < spec.operand_count ? o : plan::kCommandTensors;
}

struct ShapeContext {
  const PlanView& view;
  const plan::ProgramRecord& program;
  const plan::CommandRecord& command;
  bool gather;
};

// Binds free symbols of one operand and compares all others.
bool operand_shape_good(const ShapeContext& at, const OperandSpec& operand, const plan::TensorRecord& tensor,
                        Symbols& symbols) {
  if (tensor.rank != operand.rank) return false;
  for (uint32_t i = 0; i < operand.rank; ++i) {
    const char symbol = operand.dims[i];
    uint64_t& value = symbols[symbol];
    if (value == 0 && kFreeSymbols.find(symbol) != std::string_view::npos) value = tensor.dims[i];
    uint64_t wanted = value;
    const bool rows = symbol == 'R' || (symbol == 'E' && !at.gather);
    if (i == 0 && rows && tensor.region == static_cast<uint32_t>(Region::kIo))
      wanted = symbols[static_cast<Family>(at.program.family) == Family::kBody ? 'M' : 'L'];
    if (tensor.dims[i] != wanted) return false;
  }
  return true;
}

bool shapes_good(const ShapeContext& at, Symbols symbols) {
  const KernelSpec& spec = spec_of(at.command);
  symbols['R'] = at.program.rows;
  symbols['E'] = at.gather ? symbols['M'] : at.program.rows;
  for (uint32_t o = 0; o < spec.operand_count; ++o) {
    if (!is_present(spec.operands[o], at.command.flags)) continue;
    const plan::TensorRecord& tensor = at.view.tensors[at.command.tensors[o]];
    if (!operand_shape_good(at, spec.operands[o], tensor, symbols)) return false;
  }
  const uint64_t outputs_factor = (at.command.flags & plan::kFlagSiluMul) != 0 ? 2 : 1;
  if (symbols['W'] != 0 && symbols['W'] != outputs_factor * symbols['N']) return false;
  const uint32_t position = weight_position(spec);
  if (position == plan::kCommandTensors) return true;
  const plan::TensorRecord& weight = at.view.tensors[at.command.tensors[position]];
  const uint64_t padded =
      plan::kPanelOutputs * panel_count(weight.dims[0], static_cast<Layout>(weight.layout));
  if (symbols['U'] != 0 && symbols['U'] != padded) return false;
  if (symbols['X'] != 0 && symbols['X'] != k_padded(symbols['K'], static_cast<plan::Dtype>(weight.dtype)))
    return false;
  return symbols['Z'] == 0 || plan::kI8Group * symbols['Z'] == symbols['X'];
}

Reason command_shapes(PlanView& view, uint64_t* index) {
  const Symbols symbols(*view.header);
  return each_command(view, Reason::kBadCommandShape, index,
                      [&](const auto& program, const auto& command, uint64_t) {
                        const bool gather = (command.flags & plan::kFlagGather) != 0;
                        return shapes_good({view, program, command, gather}, symbols);
                      });
}

// --- tables and texts
// ---------------------------------------------------------------------------------------

// Value of one dimension of kStateTensors: a decimal number, a named size, or a symbol.
uint64_t state_dimension(std::string_view dimension, Symbols symbols) {
  if (dimension == "ENGINE_BYTES") return plan::kEngineBytes;
  if (dimension == "EVENT_BYTES") return sizeof(plan::EventRecord) * plan::kEventRingEntries;
  if (dimension[0] >= 'A') return symbols[dimension[0]];
  uint64_t value = 0;
  for (const char digit : dimension) value = 10 * value + static_cast<uint64_t>(digit - '0');
  return value;
}

bool state_tensor_good(const plan::TensorRecord& tensor, const plan::StateTensorSpec& spec,
                       const Symbols& symbols) {
  if (tensor.region != static_cast<uint32_t>(spec.region) ||
      tensor.unit != static_cast<uint32_t>(spec.unit) || tensor.dtype != static_cast<uint32_t>(spec.dtype) ||
      tensor.layout != static_cast<uint32_t>(Layout::kRows))
    return false;
  std::string_view dims = spec.dims;
  for (uint32_t i = 0; i < tensor.rank; ++i) {
    const std::string_view dimension = dims.substr(0, dims.find(' '));
    if (dimension.empty() || tensor.dims[i] != state_dimension(dimension, symbols)) return false;
    dims.remove_prefix(std::min(dimension.size() + 1, dims.size()));
  }
  return dims.empty();
}

Reason state_tensors(PlanView& view, uint64_t* index) {
  constexpr uint32_t kCount = std::size(plan::kStateTensors);
  const plan::TensorRecord* found[kCount] = {};
  uint32_t counts[kCount] = {};
  for (const plan::TensorRecord& tensor : view.tensors) {
    const std::string_view name = view.name(tensor);
    for (uint32_t s = 0; s < kCount; ++s) {
      if (name != plan::kStateTensors[s].name) continue;
      found[s] = &tensor;
      ++counts[s];
    }
  }
  const Symbols symbols(*view.header);
  for (uint32_t s = 0; s < kCount; ++s)
    if (counts[s] != 1 || !state_tensor_good(*found[s], plan::kStateTensors[s], symbols))
      return refuse(Reason::kBadStateTensor, s, index);
  return Reason::kOk;
}

Reason selftest(PlanView& view, uint64_t* index) {
  const std::span<const std::byte> section = view.section(plan::Section::kSelftest);
  if (section.empty()) return Reason::kOk;
  const auto bad = [&](uint64_t at) { return refuse(Reason::kBadSelftest, at, index); };
  if (section.size() < sizeof(plan::SelftestRecord)) return bad(0);
  const auto& record = *reinterpret_cast<const plan::SelftestRecord*>(section.data());
  const plan::Header& header = *view.header;
  if (!between(record.prompt_count, 1, std::min(plan::kLimitSelftestTokens, header.context))) return bad(0);
  if (!between(record.probe_count, 1, plan::kLimitSelftestTokens)) return bad(4);
  if (record.next_token >= header.vocabulary) return bad(8);
  if (!finite(record.margin) || !(record.margin >= 0.0f)) return bad(12);
  if (!finite(record.tolerance) || !(record.tolerance >= 0.0f)) return bad(16);
  if (!is_zero(record.padding)) return bad(20);
  const uint64_t tokens = uint64_t{record.prompt_count} + record.probe_count;
  const uint64_t words = tokens + record.probe_count;
  if (section.size() != sizeof record + 4 * words) return bad(sizeof record);
  for (uint64_t i = 0; i < words; ++i) {
    const uint64_t at = sizeof record + 4 * i;
    uint32_t word;
    std::memcpy(&word, section.subspan(at, sizeof word).data(), sizeof word);
    if (i < tokens ? word >= header.vocabulary : !finite(std::bit_cast<float>(word))) return bad(at);
  }
  return Reason::kOk;
}

// Bytes of the UTF-8 sequence that `text` begins with (RFC 3629, section 4), 0 when it begins with none.
uint64_t sequence_bytes(std::span<const std::byte> text) {
  const auto lead = std::to_integer<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const uint64_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
  const auto second = std::to_integer<uint8_t>(text[1]);
  const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!between(second, least, most)) return 0;
  for (uint64_t i = 2; i < bytes; ++i)
    if ((std::to_integer<uint8_t>(text[i]) & 0xC0) != 0x80) return 0;
  return bytes;
}

bool is_utf8(std::span<const std::byte> text) {
  while (!text.empty()) {
    uint64_t word = 0;  // mostly ASCII: eight bytes at once
    if (text.size() >= sizeof word) {
      std::memcpy(&word, text.data(), sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        text = text.subspan(sizeof word);
        continue;
      }
    }
    const uint64_t bytes = sequence_bytes(text);
    if (bytes == 0) return false;
    text = text.subspan(bytes);
  }
  return true;
}

Reason texts(PlanView& view, uint64_t* index) {
  using plan::Section;
  for (const Section kind : {Section::kMeta, Section::kDrift, Section::kTokenizer, Section::kTemplate})
    if (!is_utf8(view.section(kind))) return refuse(Reason::kBadText, static_cast<uint64_t>(kind), index);
  return Reason::kOk;
}

constexpr Step kCommandSteps[] = {
    command_fields, command_tensors, command_lifetimes, command_shapes, state_tensors, selftest, texts,
};

}  // namespace

std::span<const Step> command_steps() { return kCommandSteps; }

}  // namespace ingot::checks
