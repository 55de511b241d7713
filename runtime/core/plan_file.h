// An open plan: the file read and verified once, immutable from then on, shared by engines through a count of
// holders. The header, tables and texts are copied into memory of our own before they are verified, so that
// nobody who writes to the file later can change what was checked; weights and scales stay in the file until
// an engine reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "error.h"
#include "plan.h"

// The plan's control block; it lies in the first page of its own mapping.
struct ingot_plan {
  mutable std::atomic<uint32_t> holders;
  int file;            // open for reading weights; closed with the plan
  std::byte* mapping;  // this block in its first page, then the file
  uint64_t mapping_bytes;
  ingot::PlanView view;
};

namespace ingot::core {

// Opens, reads and verifies; INGOT_ERROR_FILE or INGOT_ERROR_PLAN.
ingot_code open_plan(const char* path, ingot_plan** plan, ingot_error* error);
void hold_plan(const ingot_plan& plan);
void drop_plan(const ingot_plan& plan);

// Fills `target` with a section's bytes from the file; INGOT_ERROR_FILE when it shrank or cannot be read.
ingot_code read_section(const ingot_plan& plan, plan::Section kind, std::span<std::byte> target,
                        ingot_error* error);

}  // namespace ingot::core
