// The sampler and the random numbers as a C library for the Python tests, which have their own arithmetic for
// both.
#include <cstring>

#include "core/rng.h"
#include "core/sampler.h"

#define PROBE extern "C" __attribute__((visibility("default")))

PROBE void probe_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  const auto words = ingot::core::philox({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]});
  std::memcpy(out, words.data(), sizeof words);
}

PROBE double probe_uniform(uint64_t seed, uint32_t position) { return ingot::core::uniform(seed, position); }

PROBE float probe_exp(float x) { return ingot::core::exp_unfused(x); }

PROBE double probe_log(double x) { return ingot::core::log_unfused(x); }

// One row: `record` is the 768 bytes of a SamplingRecord, scratch 2 * vocabulary floats, tops 21 entries
// each.
PROBE uint32_t probe_sample(const float* logits, uint32_t vocabulary, const uint16_t* counts,
                            const void* record, uint32_t position, float* scratch, uint32_t* top_tokens,
                            float* top_logprobs) {
  const ingot::core::SampleRow row{{logits, vocabulary},
                                   counts,
                                   static_cast<const ingot::plan::SamplingRecord*>(record),
                                   position,
                                   scratch,
                                   scratch + vocabulary};
  return ingot::core::sample_row(row, top_tokens, top_logprobs);
}
