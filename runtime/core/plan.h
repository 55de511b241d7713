// A plan file in memory: `verify` checks every byte that the runtime will use, once; a PlanView is what it
// leaves behind. Nothing may look into a plan before verify returned Reason::kOk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "../../plans/generated/plan_layout.h"

namespace ingot {

// Typed access to a verified plan. All pointers lie inside the file; nothing is owned.
struct PlanView {
  std::span<const std::byte> file;
  const plan::Header* header = nullptr;
  std::span<const plan::SectionRecord> sections;
  std::span<const plan::RegionRecord> regions;    // six, in Region order
  std::span<const plan::TensorRecord> tensors;    // sorted by region, unit, offset; arena tensors by program
  std::span<const plan::ProgramRecord> programs;  // bodies by rows, then heads by rows
  std::span<const plan::CommandRecord> commands;
  std::span<const plan::KernelRecord> kernels;
  std::string_view strings;

  // A section's bytes; empty when the plan has none of that kind.
  std::span<const std::byte> section(plan::Section kind) const;
  std::string_view name(const plan::TensorRecord& tensor) const;
  // Index of the tensor with this name, kNoneIndex when there is none. Linear: for open, not for steps.
  uint32_t find(std::string_view name) const;
};

// Checks a whole file. Returns the reason and, in *index, the offending record, section, chunk or offset (0
// when it has none). On kOk *view (may be null) is filled. The order of checks is the order of the reasons.
// Allocates nothing. A file of at least a page begins at an address that is a multiple of 8.
plan::Reason verify(std::span<const std::byte> file, uint64_t* index, PlanView* view);

const char* reason_text(plan::Reason reason);

// layout.py's region_bytes: three parts, each rounded up to a page. The caller has checked the counts against
// the header.
uint64_t region_bytes(const plan::RegionRecord& region, uint64_t granules, uint64_t requests);

}  // namespace ingot
