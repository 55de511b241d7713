// Checks what a caller asks for before anything is touched: open options against the plan's ceilings, a
// prompt and its sampling against the plan and the pool. Pure functions; a refusal names what was found and
// what is allowed.
#pragma once

#include <cstdint>
#include <span>

#include "../cpu/kernel.h"
#include "error.h"
#include "plan.h"

namespace ingot::core {

// Open options with every default filled in.
struct Choice {
  uint32_t granules = 0;
  uint32_t requests = 0;
  uint32_t threads = 0;
  uint32_t step_rows = 0;
  cpu::Isa isa = cpu::Isa::kScalar;
  bool lock_memory = false;
  std::byte* memory = nullptr;
};

// INGOT_ERROR_OPTION. `options` may be null: all defaults. The instruction set is checked by `choose_isa`.
ingot_code choose(const plan::Header& plan, const ingot_options* options, Choice* choice, ingot_error* error);

// INGOT_ERROR_TARGET when the plan's target or the instruction set is not this machine's.
ingot_code choose_isa(const plan::Header& plan, const ingot_options* options, Choice* choice,
                      ingot_error* error);

// Tokens to generate and the record that the SAMPLE kernel reads. PROMPT_EMPTY, PROMPT_LONG, TOKEN, SAMPLING,
// TOKENS_LONG.
ingot_code check_request(const plan::Header& plan, std::span<const uint32_t> prompt,
                         const ingot_sampling& sampling, plan::SamplingRecord* record, ingot_error* error);

// INGOT_ERROR_TOKEN when a token is not below the vocabulary.
ingot_code check_tokens(const plan::Header& plan, std::span<const uint32_t> tokens, ingot_error* error);

}  // namespace ingot::core
