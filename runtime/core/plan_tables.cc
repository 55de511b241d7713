// Steps 18 to 27 of plans/VERIFY.md: regions, tensors, kernels, programs, and the arena's lifetimes and
// overlaps (INV-03). After them every tensor lies inside its region.
#include <algorithm>

#include "plan_checks.h"

namespace ingot::checks {
namespace {

using plan::Dtype;
using plan::Family;
using plan::Layout;
using plan::Reason;
using plan::Region;
using plan::Unit;

constexpr uint32_t kRegionCount = 6;
static_assert(static_cast<uint32_t>(Region::kIo) == kRegionCount, "IO is the last region");

constexpr bool kernels_in_order() {
  for (uint32_t k = 0; k < std::size(plan::kKernels); ++k)
    if (static_cast<uint32_t>(plan::kKernels[k].id) != k + 1) return false;
  return true;
}
static_assert(kernels_in_order(), "kKernels[id - 1] is a kernel's contract");

// Whether a region may have granule and request parts.
constexpr bool is_split(Region region) { return region == Region::kState || region == Region::kKv; }

// Bytes of an element; 0 when there is no such dtype.
constexpr uint64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kE4m3:
    case Dtype::kE5m2:
      return 1;
    case Dtype::kU16:
    case Dtype::kF16:
    case Dtype::kBf16:
      return 2;
    case Dtype::kU32:
    case Dtype::kF32:
      return 4;
  }
  return 0;
}

constexpr bool is_panel_dtype(Dtype dtype) {
  return dtype == Dtype::kI8 || dtype == Dtype::kE4m3 || dtype == Dtype::kBf16;
}

bool region_good(const PlanView& view, const plan::RegionRecord& record, Region region) {
  const plan::Header& header = *view.header;
  if (record.kind != static_cast<uint32_t>(region)) return false;
  if (region == Region::kWeights || region == Region::kScales) {
    const plan::Section section =
        region == Region::kWeights ? plan::Section::kWeights : plan::Section::kScales;
    if (record.section != static_cast<uint32_t>(section)) return false;
    if (record.bytes_fixed != view.section(section).size()) return false;
  } else if (record.section != 0 || record.bytes_fixed > kBytesMax) {
    return false;
  }
  const uint64_t granule_max = is_split(region) ? kBytesMax / header.granules_max : 0;
  const uint64_t request_max = is_split(region) ? kBytesMax / header.requests_max : 0;
  if (record.bytes_per_granule % plan::kTensorAlignment != 0 || record.bytes_per_granule > granule_max)
    return false;
  if (record.bytes_per_request % plan::kTensorAlignment != 0 || record.bytes_per_request > request_max)
    return false;
  return (record.alignment == plan::kPageBytes || record.alignment == plan::kHugePageBytes) &&
         is_zero(record.padding);
}

Reason regions(PlanView& view, uint64_t* index) {
  if (view.regions.size() != kRegionCount) return refuse(Reason::kBadRegion, view.regions.size(), index);
  for (uint32_t i = 0; i < kRegionCount; ++i)
    if (!region_good(view, view.regions[i], static_cast<Region>(i + 1)))
      return refuse(Reason::kBadRegion, i, index);
  return Reason::kOk;
}

Reason tensor_names(PlanView& view, uint64_t* index) {
  for (uint64_t t = 0; t < view.tensors.size(); ++t) {
    const plan::TensorRecord& tensor = view.tensors[t];
    if (!between(tensor.name_bytes, 1, plan::kLimitNameBytes) ||
        !inside(tensor.name_offset, tensor.name_bytes, view.strings.size()))
      return refuse(Reason::kBadTensorName, t, index);
  }
  return Reason::kOk;
}

bool dims_good(const plan::TensorRecord& tensor) {
  if (!between(tensor.rank, 1, std::size(tensor.dims))) return false;
  for (uint32_t i = 0; i < std::size(tensor.dims); ++i)
    if ((tensor.dims[i] != 0) != (i < tensor.rank)) return false;
  return true;
}

bool fields_good(const plan::TensorRecord& tensor) {
  if (!between(tensor.region, 1, kRegionCount)) return false;
  const auto region = static_cast<Region>(tensor.region);
  if (tensor.unit > static_cast<uint32_t>(Unit::kRequest)) return false;
  if (static_cast<Unit>(tensor.unit) != Unit::kFixed && !is_split(region)) return false;
  const auto dtype = static_cast<Dtype>(tensor.dtype);
  if (dtype_bytes(dtype) == 0 || tensor.layout > static_cast<uint32_t>(Layout::kPanelsPaired)) return false;
  if (!dims_good(tensor)) return false;
  const auto layout = static_cast<Layout>(tensor.layout);
  if (layout != Layout::kRows && (region != Region::kWeights || tensor.rank != 2 || !is_panel_dtype(dtype)))
    return false;
  if (layout == Layout::kPanelsPaired && tensor.dims[0] % 2 != 0) return false;
  if (region != Region::kArena &&
      (tensor.first_command != plan::kNoneIndex || tensor.last_command != plan::kNoneIndex))
    return false;
  return is_zero(tensor.padding);
}

Reason tensor_fields(PlanView& view, uint64_t* index) {
  for (uint64_t t = 0; t < view.tensors.size(); ++t)
    if (!fields_good(view.tensors[t])) return refuse(Reason::kBadTensorField, t, index);
  return Reason::kOk;
}

// layout.py's tensor_bytes; false when it is over kBytesMax.
bool tensor_bytes(const plan::TensorRecord& tensor, uint64_t* bytes) {
  const auto dtype = static_cast<Dtype>(tensor.dtype);
  const auto layout = static_cast<Layout>(tensor.layout);
  if (layout == Layout::kRows) {
    *bytes = dtype_bytes(dtype);
    for (uint32_t i = 0; i < tensor.rank; ++i)
      if (__builtin_mul_overflow(*bytes, tensor.dims[i], bytes)) return false;
    return *bytes <= kBytesMax;
  }
  const uint64_t width = k_padded(tensor.dims[1], dtype);  // below 1 << 33
  const uint64_t panel = dtype == Dtype::kI8 ? width / plan::kI8Block * plan::kI8BlockBytes
                                             : width * plan::kPanelOutputs * dtype_bytes(dtype);
  return !__builtin_mul_overflow(panel_count(tensor.dims[0], layout), panel, bytes) && *bytes <= kBytesMax;
}

Reason tensor_sizes(PlanView& view, uint64_t* index) {
  for (uint64_t t = 0; t < view.tensors.size(); ++t) {
    uint64_t bytes = 0;
    if (!tensor_bytes(view.tensors[t], &bytes) || bytes != view.tensors[t].bytes)
      return refuse(Reason::kBadTensorBytes, t, index);
  }
  return Reason::kOk;
}

Reason tensor_bounds(PlanView& view, uint64_t* index) {
  for (uint64_t t = 0; t < view.tensors.size(); ++t) {
    const plan::TensorRecord& tensor = view.tensors[t];
    const plan::RegionRecord& region = view.regions[tensor.region - 1u];
    const uint64_t parts[] = {region.bytes_fixed, region.bytes_per_granule, region.bytes_per_request};
    if (tensor.offset % plan::kTensorAlignment != 0 ||
        !inside(tensor.offset, tensor.bytes, parts[tensor.unit]))
      return refuse(Reason::kBadTensorBounds, t, index);
  }
  return Reason::kOk;
}

Reason tensor_order(PlanView& view, uint64_t* index) {
  uint32_t previous = 0;
  uint64_t end = 0;
  for (uint64_t t = 0; t < view.tensors.size(); ++t) {
    const plan::TensorRecord& tensor = view.tensors[t];
    const uint32_t key = tensor.region * 256u + tensor.unit;
    const bool arena = static_cast<Region>(tensor.region) == Region::kArena;
    if (key < previous || (key == previous && !arena && tensor.offset < end))
      return refuse(Reason::kBadTensorOrder, t, index);
    previous = key;
    end = tensor.offset + tensor.bytes;  // inside its part: at most kBytesMax
  }
  return Reason::kOk;
}

Reason kernels(PlanView& view, uint64_t* index) {
  uint32_t previous = 0;
  for (uint64_t k = 0; k < view.kernels.size(); ++k) {
    const plan::KernelRecord& kernel = view.kernels[k];
    const auto bad = [&] { return refuse(Reason::kBadKernel, k, index); };
    if (!between(kernel.id, 1, std::size(plan::kKernels)) || kernel.id <= previous) return bad();
    const plan::KernelSpec& spec = plan::kKernels[kernel.id - 1];
    if (kernel.version != spec.version) return bad();
    if (!inside(kernel.name_offset, kernel.name_bytes, view.strings.size())) return bad();
    if (view.strings.substr(kernel.name_offset, kernel.name_bytes) != spec.name) return bad();
    if (!is_zero(kernel.padding)) return bad();
    previous = kernel.id;
  }
  return Reason::kOk;
}

// What must come next in the program table.
struct ProgramCursor {
  uint64_t command_end = 0;
  uint64_t tensor_end = 0;
  uint64_t arena_end = 0;  // tensors with a region of at most ARENA
  uint32_t family = 0;
  uint32_t rows[3] = {};  // of the last program, by Family
};

bool program_good(const PlanView& view, const plan::ProgramRecord& program, const ProgramCursor& at) {
  const auto family = static_cast<Family>(program.family);
  if ((family != Family::kBody && family != Family::kHead) || program.family < at.family) return false;
  const uint32_t rows_max = family == Family::kBody ? view.header->rows_max : view.header->head_rows_max;
  if (program.rows <= at.rows[program.family] || program.rows > rows_max) return false;
  if (program.command_begin != at.command_end) return false;
  if (!between(program.command_count, 1, view.commands.size() - at.command_end)) return false;
  if (program.tensor_begin != at.tensor_end || program.tensor_count > plan::kLimitProgramTensors ||
      program.tensor_count > at.arena_end - at.tensor_end)
    return false;
  const plan::RegionRecord& arena = view.regions[static_cast<uint32_t>(Region::kArena) - 1];
  return program.arena_bytes <= arena.bytes_fixed &&
         program.arena_lower_bound <= round_up(program.arena_bytes, plan::kTensorAlignment) &&
         is_zero(program.padding);
}

Reason programs(PlanView& view, uint64_t* index) {
  ProgramCursor at;
  for (const plan::TensorRecord& tensor : view.tensors) {
    at.tensor_end += tensor.region < static_cast<uint32_t>(Region::kArena);
    at.arena_end += tensor.region <= static_cast<uint32_t>(Region::kArena);
  }
  for (uint64_t p = 0; p < view.programs.size(); ++p) {
    const plan::ProgramRecord& program = view.programs[p];
    if (!program_good(view, program, at)) return refuse(Reason::kBadProgram, p, index);
    at.command_end += program.command_count;
    at.tensor_end += program.tensor_count;
    at.family = program.family;
    at.rows[program.family] = program.rows;
  }
  const plan::Header& header = *view.header;
  if (at.command_end != view.commands.size() || at.tensor_end != at.arena_end ||
      at.rows[static_cast<uint32_t>(Family::kBody)] != header.rows_max ||
      at.rows[static_cast<uint32_t>(Family::kHead)] != header.head_rows_max)
    return refuse(Reason::kBadProgram, view.programs.size(), index);
  return Reason::kOk;
}

Reason arena_tensors(PlanView& view, uint64_t* index) {
  for (const plan::ProgramRecord& program : view.programs) {
    const uint64_t command_end = uint64_t{program.command_begin} + program.command_count;
    for (uint64_t i = 0; i < program.tensor_count; ++i) {
      const uint64_t t = program.tensor_begin + i;
      const plan::TensorRecord& tensor = view.tensors[t];
      if (tensor.first_command < program.command_begin || tensor.first_command > tensor.last_command ||
          tensor.last_command >= command_end || !inside(tensor.offset, tensor.bytes, program.arena_bytes))
        return refuse(Reason::kBadArenaTensor, t, index);
    }
  }
  return Reason::kOk;
}

// Whether some tensor of `earlier` is alive together with `later` and shares a byte with it. Written without
// branches: a plan made to be slow has kLimitPrograms * kLimitProgramTensors^2 / 2 = 2^31 pairs.
bool overlaps_any(std::span<const plan::TensorRecord> earlier, const plan::TensorRecord& later) {
  const uint64_t later_end = later.offset + later.bytes;
  bool found = false;
  for (const plan::TensorRecord& tensor : earlier) {
    found |= (tensor.first_command <= later.last_command) & (later.first_command <= tensor.last_command) &
             (tensor.offset < later_end) & (later.offset < tensor.offset + tensor.bytes);
  }
  return found;
}

Reason arena_overlap(PlanView& view, uint64_t* index) {
  for (const plan::ProgramRecord& program : view.programs) {
    const auto tensors = view.tensors.subspan(program.tensor_begin, program.tensor_count);
    for (uint64_t j = 1; j < tensors.size(); ++j)
      if (overlaps_any(tensors.first(j), tensors[j]))
        return refuse(Reason::kArenaOverlap, program.tensor_begin + j, index);
  }
  return Reason::kOk;
}

constexpr Step kTableSteps[] = {
    regions,      tensor_names, tensor_fields, tensor_sizes,  tensor_bounds,
    tensor_order, kernels,      programs,      arena_tensors, arena_overlap,
};

}  // namespace

std::span<const Step> table_steps() { return kTableSteps; }

}  // namespace ingot::checks
