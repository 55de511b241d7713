// What the parts of the plan verifier share. `plan.cc` has steps 1 to 17 of plans/VERIFY.md (file, header,
// sections, hashes), `plan_tables.cc` 18 to 27 (regions to arena), `plan_commands.cc` 28 to 34. A step looks
// at bytes that all earlier steps have accepted, and returns kOk or its reason with *index set. Steps
// allocate nothing and do not recurse; every loop runs over a count that an earlier step has capped.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "plan.h"

namespace ingot::checks {

inline constexpr uint64_t kBytesMax = uint64_t{1} << plan::kLimitBytesLog2;

using Step = plan::Reason (*)(PlanView& view, uint64_t* index);

// Steps 18 to 27 and 28 to 34, in order.
std::span<const Step> table_steps();
std::span<const Step> command_steps();

inline plan::Reason refuse(plan::Reason reason, uint64_t at, uint64_t* index) {
  *index = at;
  return reason;
}

// Whether [offset, offset + bytes) lies in [0, whole): nothing here can wrap.
constexpr bool inside(uint64_t offset, uint64_t bytes, uint64_t whole) {
  return offset <= whole && bytes <= whole - offset;
}

constexpr bool between(uint64_t value, uint64_t least, uint64_t most) {
  return least <= value && value <= most;
}

// The least multiple that is not below `value`. Callers' values are far from wrapping.
constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Offset of the first byte that is not zero; the size when there is none.
inline uint64_t first_nonzero(std::span<const std::byte> bytes) {
  uint64_t at = 0;
  for (uint64_t word = 0; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word != 0) break;
  }
  while (at < bytes.size() && bytes[at] == std::byte{0}) ++at;
  return at;
}

template <typename T, size_t kCount>
bool is_zero(const T (&values)[kCount]) {
  return first_nonzero(std::as_bytes(std::span(values))) == sizeof values;
}

// Neither infinite nor NaN, by the bits.
constexpr bool finite(float value) { return (std::bit_cast<uint32_t>(value) >> 23 & 0xFF) != 0xFF; }

// Input width as kernels read it, layout.py's k_padded.
constexpr uint64_t k_padded(uint64_t k, plan::Dtype dtype) {
  return round_up(k, dtype == plan::Dtype::kI8 ? plan::kI8Block : 16);
}

// Panels of a weight with `outputs` output channels, layout.py's panel_count.
constexpr uint64_t panel_count(uint64_t outputs, plan::Layout layout) {
  if (layout == plan::Layout::kPanelsPaired)
    return 2 * (round_up(outputs / 2, plan::kPanelOutputs) / plan::kPanelOutputs);
  return round_up(outputs, plan::kPanelOutputs) / plan::kPanelOutputs;
}

}  // namespace ingot::checks
