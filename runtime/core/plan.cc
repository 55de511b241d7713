// Steps 1 to 17 of plans/VERIFY.md: the file, its header, the section table, hashes and padding; then the
// order of all steps, and what a verified plan answers. The page says what each step demands.
#include "plan.h"

#include <algorithm>

#include "error.h"
#include "plan_checks.h"
#include "sha256.h"

namespace ingot {
namespace {

using checks::between;
using checks::first_nonzero;
using checks::inside;
using checks::refuse;
using checks::round_up;
using plan::Reason;
using plan::Section;

bool is_section(uint32_t kind) {
  switch (static_cast<Section>(kind)) {
    case Section::kRegions:
    case Section::kTensors:
    case Section::kPrograms:
    case Section::kCommands:
    case Section::kKernels:
    case Section::kStrings:
    case Section::kMeta:
    case Section::kDrift:
    case Section::kTokenizer:
    case Section::kTemplate:
    case Section::kSelftest:
    case Section::kScales:
    case Section::kWeights:
    case Section::kHashes:
      return true;
  }
  return false;
}
constexpr uint32_t kSectionKinds = 17;  // kinds are below this
static_assert(static_cast<uint32_t>(Section::kHashes) == kSectionKinds - 1, "HASHES is the last kind");

bool is_target(uint32_t target) {
  switch (static_cast<plan::Target>(target)) {
    case plan::Target::kCpu:
    case plan::Target::kSm90a:
    case plan::Target::kTensorrt:
      return true;
  }
  return false;
}

template <typename... Dtypes>
bool is_one_of(uint32_t dtype, Dtypes... allowed) {
  return ((dtype == static_cast<uint32_t>(allowed)) || ...);
}

bool same_hash(const Sha256Digest& digest, const void* stored) {
  return std::memcmp(digest.data(), stored, digest.size()) == 0;
}

Reason long_enough(PlanView& view, uint64_t* index) {
  if (view.file.size() < plan::kPageBytes) return refuse(Reason::kTooShort, view.file.size(), index);
  INGOT_ASSERT(reinterpret_cast<uintptr_t>(view.file.data()) % alignof(plan::Header) == 0, "plan",
               "a plan in memory is aligned to 8 bytes");
  view.header = reinterpret_cast<const plan::Header*>(view.file.data());
  return Reason::kOk;
}

Reason magic(PlanView& view, uint64_t* index) {
  if (std::memcmp(view.header->magic, plan::kMagic, sizeof view.header->magic) != 0)
    return refuse(Reason::kBadMagic, 0, index);
  return Reason::kOk;
}

Reason version(PlanView& view, uint64_t* index) {
  const uint32_t found = view.header->format_version;
  return found == plan::kFormatVersion ? Reason::kOk : refuse(Reason::kBadVersion, found, index);
}

Reason header_hash(PlanView& view, uint64_t* index) {
  std::byte page[plan::kPageBytes];
  std::memcpy(page, view.file.data(), sizeof page);
  std::memset(page + offsetof(plan::Header, header_hash), 0, sizeof view.header->header_hash);
  if (!same_hash(sha256(page), view.header->header_hash)) return refuse(Reason::kBadHeaderHash, 0, index);
  return Reason::kOk;
}

Reason file_size(PlanView& view, uint64_t* index) {
  const uint64_t found = view.header->file_bytes;
  return found == view.file.size() ? Reason::kOk : refuse(Reason::kBadFileSize, found, index);
}

Reason header_fields(PlanView& view, uint64_t* index) {
  using plan::Dtype;
  const plan::Header& h = *view.header;
  struct Field {
    uint64_t offset;
    bool good;
  };
#define INGOT_FIELD(name, good)        \
  {                                    \
    offsetof(plan::Header, name), good \
  }
  const Field fields[] = {
      INGOT_FIELD(header_bytes, h.header_bytes == plan::kPageBytes),
      INGOT_FIELD(target, is_target(h.target)),
      INGOT_FIELD(section_count, between(h.section_count, 1, plan::kLimitSections)),
      INGOT_FIELD(vocabulary, between(h.vocabulary, 1, plan::kLimitVocabulary)),
      INGOT_FIELD(layers, between(h.layers, 1, plan::kLimitLayers)),
      INGOT_FIELD(hidden, between(h.hidden, 1, plan::kLimitHidden)),
      INGOT_FIELD(query_heads, between(h.query_heads, 1, plan::kLimitHeads)),
      INGOT_FIELD(kv_heads, between(h.kv_heads, 1, plan::kLimitHeads) && h.query_heads % h.kv_heads == 0),
      INGOT_FIELD(head_size, between(h.head_size, 8, plan::kLimitHeadSize) && h.head_size % 8 == 0),
      INGOT_FIELD(rotary_pairs, h.rotary_pairs <= h.head_size / 2),
      INGOT_FIELD(context, between(h.context, 1, plan::kLimitContext)),
      INGOT_FIELD(rows_max, between(h.rows_max, 1, plan::kLimitRows)),
      INGOT_FIELD(head_rows_max, between(h.head_rows_max, 1, plan::kLimitHeadRows)),
      INGOT_FIELD(requests_max, between(h.requests_max, 1, plan::kLimitRequests)),
      INGOT_FIELD(requests_default, between(h.requests_default, 1, h.requests_max)),
      INGOT_FIELD(granules_max, between(h.granules_max, 1, plan::kLimitGranules)),
      INGOT_FIELD(granules_default, between(h.granules_default, 1, h.granules_max)),
      INGOT_FIELD(default_max_tokens, between(h.default_max_tokens, 1, plan::kLimitContext)),
      INGOT_FIELD(weights_dtype, is_one_of(h.weights_dtype, Dtype::kI8, Dtype::kE4m3, Dtype::kBf16)),
      INGOT_FIELD(kv_dtype, is_one_of(h.kv_dtype, Dtype::kI8, Dtype::kE4m3, Dtype::kE5m2, Dtype::kBf16)),
      INGOT_FIELD(activation_dtype,
                  is_one_of(h.activation_dtype, Dtype::kI8, Dtype::kE4m3, Dtype::kBf16, Dtype::kF32)),
      INGOT_FIELD(bos_token, h.bos_token < h.vocabulary || h.bos_token == plan::kNoneIndex),
      INGOT_FIELD(eos_count, h.eos_count <= plan::kLimitEosTokens),
  };
#undef INGOT_FIELD
  for (const Field& field : fields)
    if (!field.good) return refuse(Reason::kBadHeaderField, field.offset, index);
  static_assert(std::size(plan::Header{}.eos_tokens) == plan::kLimitEosTokens);
  for (uint32_t i = 0; i < plan::kLimitEosTokens; ++i) {
    if (i < h.eos_count ? h.eos_tokens[i] < h.vocabulary : h.eos_tokens[i] == 0) continue;
    return refuse(Reason::kBadHeaderField, offsetof(plan::Header, eos_tokens) + 4 * i, index);
  }
  return Reason::kOk;
}

// kOk, or `reason` with the file offset of the first byte of [begin, end) that is not zero.
Reason zeros(const PlanView& view, uint64_t begin, uint64_t end, Reason reason, uint64_t* index) {
  const uint64_t at = begin + first_nonzero(view.file.subspan(begin, end - begin));
  return at == end ? Reason::kOk : refuse(reason, at, index);
}

Reason header_padding(PlanView& view, uint64_t* index) {
  return zeros(view, offsetof(plan::Header, padding), plan::kSectionTableOffset, Reason::kBadHeaderPadding,
               index);
}

Reason section_kinds(PlanView& view, uint64_t* index) {
  static_assert(plan::kSectionTableOffset % alignof(plan::SectionRecord) == 0);
  static_assert(plan::kSectionTableOffset + plan::kLimitSections * sizeof(plan::SectionRecord) <=
                plan::kPageBytes);
  view.sections = {reinterpret_cast<const plan::SectionRecord*>(view.file.data() + plan::kSectionTableOffset),
                   view.header->section_count};
  uint32_t previous = 0;
  for (uint64_t i = 0; i < view.sections.size(); ++i) {
    const uint32_t kind = view.sections[i].kind;
    if (!is_section(kind) || kind <= previous) return refuse(Reason::kBadSectionKind, i, index);
    previous = kind;
  }
  return Reason::kOk;
}

Reason section_places(PlanView& view, uint64_t* index) {
  uint64_t end = plan::kPageBytes;
  for (uint64_t i = 0; i < view.sections.size(); ++i) {
    const plan::SectionRecord& section = view.sections[i];
    const bool huge =
        static_cast<Section>(section.kind) == Section::kWeights && section.bytes >= plan::kHugePageBytes;
    if (section.offset != round_up(end, huge ? plan::kHugePageBytes : plan::kPageBytes))
      return refuse(Reason::kBadSectionOffset, i, index);
    if (!inside(section.offset, section.bytes, view.file.size()))
      return refuse(Reason::kBadSectionBounds, i, index);
    end = section.offset + section.bytes;
  }
  if (end != view.file.size()) return refuse(Reason::kBadSectionBounds, view.sections.size() - 1, index);
  return Reason::kOk;
}

uint64_t chunk_count(uint64_t hashes_offset) {
  return (hashes_offset - plan::kPageBytes + plan::kChunkBytes - 1) / plan::kChunkBytes;
}

bool count_allowed(const plan::SectionRecord& section) {
  switch (static_cast<Section>(section.kind)) {
    case Section::kRegions:
      return section.count <= plan::kLimitRegions;
    case Section::kTensors:
      return section.count <= plan::kLimitTensors;
    case Section::kPrograms:
      return section.count <= plan::kLimitPrograms;
    case Section::kCommands:
      return section.count <= plan::kLimitCommands;
    case Section::kKernels:
      return section.count <= plan::kLimitKernels;
    case Section::kStrings:
      return section.count <= plan::kLimitStringBytes;
    case Section::kMeta:
    case Section::kDrift:
    case Section::kTemplate:
      return section.count <= plan::kLimitMetaBytes;
    case Section::kTokenizer:
      return section.count <= plan::kLimitTokenizerBytes;
    case Section::kSelftest:
      return true;
    case Section::kScales:
    case Section::kWeights:
      return section.count <= checks::kBytesMax;
    case Section::kHashes:
      return section.count == plan::kHashBytes * chunk_count(section.offset);
  }
  return false;
}

Reason section_records(PlanView& view, uint64_t* index) {
  for (uint64_t i = 0; i < view.sections.size(); ++i) {
    const plan::SectionRecord& section = view.sections[i];
    uint32_t record_bytes = 1;
    for (const plan::SectionSize& size : plan::kSectionRecords)
      if (static_cast<uint32_t>(size.kind) == section.kind) record_bytes = size.record_bytes;
    uint64_t bytes = 0;
    if (section.record_bytes != record_bytes || section.count == 0 ||
        __builtin_mul_overflow(section.count, record_bytes, &bytes) || section.bytes != bytes ||
        !count_allowed(section))
      return refuse(Reason::kBadSectionRecords, i, index);
  }
  return Reason::kOk;
}

Reason section_padding(PlanView& view, uint64_t* index) {
  const uint64_t begin = plan::kSectionTableOffset + view.sections.size_bytes();
  return zeros(view, begin, plan::kPageBytes, Reason::kBadSectionPadding, index);
}

template <typename Record>
std::span<const Record> records(const PlanView& view, Section kind) {
  static_assert(alignof(Record) <= 8 && plan::kPageBytes % alignof(Record) == 0);
  const std::span<const std::byte> bytes = view.section(kind);
  return {reinterpret_cast<const Record*>(bytes.data()), bytes.size() / sizeof(Record)};
}

Reason sections_present(PlanView& view, uint64_t* index) {
  uint32_t present = plan::kOptionalSections;
  for (const plan::SectionRecord& section : view.sections) present |= 1u << section.kind;
  for (uint32_t kind = 0; kind < kSectionKinds; ++kind)
    if (is_section(kind) && (present >> kind & 1) == 0) return refuse(Reason::kMissingSection, kind, index);
  view.regions = records<plan::RegionRecord>(view, Section::kRegions);
  view.tensors = records<plan::TensorRecord>(view, Section::kTensors);
  view.programs = records<plan::ProgramRecord>(view, Section::kPrograms);
  view.commands = records<plan::CommandRecord>(view, Section::kCommands);
  view.kernels = records<plan::KernelRecord>(view, Section::kKernels);
  const std::span<const std::byte> strings = view.section(Section::kStrings);
  view.strings = {reinterpret_cast<const char*>(strings.data()), strings.size()};
  return Reason::kOk;
}

Reason root_hash(PlanView& view, uint64_t* index) {
  if (!same_hash(sha256(view.section(Section::kHashes)), view.header->root_hash))
    return refuse(Reason::kBadRootHash, 0, index);
  return Reason::kOk;
}

Reason chunk_hashes(PlanView& view, uint64_t* index) {
  const std::span<const std::byte> hashes = view.section(Section::kHashes);
  const uint64_t end = view.sections.back().offset;  // HASHES is last: step 13
  for (uint64_t chunk = 0; chunk < chunk_count(end); ++chunk) {
    const uint64_t begin = plan::kPageBytes + chunk * plan::kChunkBytes;
    const uint64_t bytes = std::min<uint64_t>(plan::kChunkBytes, end - begin);
    if (!same_hash(sha256(view.file.subspan(begin, bytes)), hashes.data() + chunk * plan::kHashBytes))
      return refuse(Reason::kBadChunkHash, chunk, index);
  }
  return Reason::kOk;
}

Reason file_padding(PlanView& view, uint64_t* index) {
  uint64_t end = plan::kPageBytes;
  for (const plan::SectionRecord& section : view.sections) {
    const Reason reason = zeros(view, end, section.offset, Reason::kBadFilePadding, index);
    if (reason != Reason::kOk) return reason;
    end = section.offset + section.bytes;
  }
  return Reason::kOk;
}

Reason strings(PlanView& view, uint64_t* index) {
  for (uint64_t at = 0; at < view.strings.size(); ++at)
    if (view.strings[at] < 0x21 || view.strings[at] > 0x7E) return refuse(Reason::kBadStrings, at, index);
  return Reason::kOk;
}

// Steps 1 to 17; steps 9 and 10 are one loop.
constexpr checks::Step kFileSteps[] = {
    long_enough,    magic,         version,        header_hash,     file_size,       header_fields,
    header_padding, section_kinds, section_places, section_records, section_padding, sections_present,
    root_hash,      chunk_hashes,  file_padding,   strings,
};

}  // namespace

Reason verify(std::span<const std::byte> file, uint64_t* index, PlanView* view) {
  INGOT_ASSERT(index != nullptr, "plan", "verify needs a place for the index");
  *index = 0;
  PlanView checked;
  checked.file = file;
  for (const std::span<const checks::Step> steps :
       {std::span<const checks::Step>(kFileSteps), checks::table_steps(), checks::command_steps()}) {
    for (const checks::Step step : steps)
      if (const Reason reason = step(checked, index); reason != Reason::kOk) return reason;
  }
  if (view != nullptr) *view = checked;
  return Reason::kOk;
}

const char* reason_text(Reason reason) {
  const auto at = static_cast<size_t>(reason);
  static_assert(std::size(plan::kReasonText) == static_cast<size_t>(Reason::kBadText) + 1);
  return at < std::size(plan::kReasonText) ? plan::kReasonText[at] : "no reason of this number exists";
}

uint64_t region_bytes(const plan::RegionRecord& region, uint64_t granules, uint64_t requests) {
  return round_up(region.bytes_fixed, plan::kPageBytes) +
         round_up(region.bytes_per_granule * granules, plan::kPageBytes) +
         round_up(region.bytes_per_request * requests, plan::kPageBytes);
}

std::span<const std::byte> PlanView::section(Section kind) const {
  for (const plan::SectionRecord& section : sections)
    if (section.kind == static_cast<uint32_t>(kind)) return file.subspan(section.offset, section.bytes);
  return {};
}

std::string_view PlanView::name(const plan::TensorRecord& tensor) const {
  return strings.substr(tensor.name_offset, tensor.name_bytes);
}

uint32_t PlanView::find(std::string_view wanted) const {
  for (uint32_t t = 0; t < tensors.size(); ++t)
    if (name(tensors[t]) == wanted) return t;
  return plan::kNoneIndex;
}

}  // namespace ingot
