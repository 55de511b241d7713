// The SAMPLE kernel: one token per head row, from its logits and its request's SamplingRecord. It is one
// phase with a row per item; a row's result depends on that row alone. No FMA and no libm: plain IEEE
// operations, the same on every ISA.
//
// Order, for logits x[V] (NaN counts as -inf, +inf as the largest finite float, -0 as +0):
//   1. logprobs, when asked for, from x as it is: x[i] - max - log(sum exp(x - max)), alternatives in
//   descending order of x,
//      ties by id.
//   2. bias: x[token] += value, for each entry.
//   3. repetition penalty r for tokens of the prompt or generated: x > 0 ? x / r : x * r; then for tokens
//   generated n
//      times, n > 0: x -= frequency * n, x -= presence.
//   4. eos and stop tokens become -inf while fewer than min_tokens are generated.
//   5. temperature 0: the largest x, ties by lowest id; end. Otherwise w = exp((x - max) / temperature).
//   6. top_k: the k largest x, ties by lowest id. 7. top_p: of those, the fewest largest whose w add up to at
//   least top_p
//      of all; ties by lowest id. 8. min_p: of those, w >= min_p (the largest w is 1).
//   9. the first token in ascending id whose running sum of w exceeds u * total; u is rng.h's uniform(seed,
//   position).
// When no token has a finite x the token is 0. Sums of w are binary64, in ascending id (8 interleaved chains
// in step 1).
#pragma once

#include <cstdint>
#include <span>

#include "../cpu/kernel.h"

namespace ingot::core {

// Bit 15 of a token count: the token is in the prompt; the low 15 bits count generated ones and saturate.
inline constexpr uint16_t kCountPrompt = 0x8000;
inline constexpr uint16_t kCountGenerated = 0x7FFF;

struct SampleRow {
  std::span<const float> logits;  // (V)
  const uint16_t* token_counts;   // (V)
  const plan::SamplingRecord* sampling;
  uint32_t position;  // of the token to be sampled
  float* values;      // (V) scratch: processed logits
  float* weights;     // (V) scratch: w
};

// The sampled token. When the record asks for logprobs, entry 0 of both arrays (1 + kTopLogprobsMax) is the
// token itself and entries 1.. are the alternatives, unused ones zero; otherwise the arrays are not touched.
uint32_t sample_row(const SampleRow& row, uint32_t* top_tokens, float* top_logprobs);

const cpu::KernelEntry& sample_kernel();

// e^x for x <= 0 in binary32 without FMA: the rounding rules' exp_ with each fma as a product and a sum.
float exp_unfused(float x);
// Natural logarithm of a normal x > 0, binary64 without FMA, error below 1 ulp (fdlibm's e_log.c).
double log_unfused(double x);

}  // namespace ingot::core
