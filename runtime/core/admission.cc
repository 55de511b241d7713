#include "admission.h"

#include <cmath>
#include <cstring>

#include "../cpu/pool.h"

namespace ingot::core {
namespace {

using Wide = unsigned long long;

ingot_code option(ingot_error* error, const char* name, uint64_t limit, uint64_t actual) {
  return fail(error, INGOT_ERROR_OPTION, limit, actual, "%s is %llu: at most %llu is allowed by the plan",
              name, static_cast<Wide>(actual), static_cast<Wide>(limit));
}

// A float is reported in thousandths, rounded towards zero and saturated; NaN as the largest number.
uint64_t thousandths(float value) {
  const float scaled = std::fabs(value) * 1000.0f;
  if (!(scaled < 1e18f)) return UINT64_MAX;
  return static_cast<uint64_t>(scaled);
}

struct FloatRange {
  const char* name;
  float value;
  float least, most;
  bool least_allowed;  // false: the value must be above `least`
  const char* allowed;
};

bool inside(const FloatRange& range) {
  if (!std::isfinite(range.value)) return false;
  return (range.least_allowed ? range.value >= range.least : range.value > range.least) &&
         range.value <= range.most;
}

ingot_code check_floats(const ingot_sampling& s, ingot_error* error) {
  constexpr float kMost = 3.4028234663852886e38f;
  const FloatRange ranges[] = {
      {"temperature", s.temperature, 0, kMost, true, "0 (greedy) or above, and finite"},
      {"top_p", s.top_p, 0, 1, false, "above 0 and at most 1"},
      {"min_p", s.min_p, 0, 1, true, "0 to 1"},
      {"repetition_penalty", s.repetition_penalty, 0, kMost, false, "above 0 and finite"},
      {"presence_penalty", s.presence_penalty, -2, 2, true, "-2 to 2"},
      {"frequency_penalty", s.frequency_penalty, -2, 2, true, "-2 to 2"},
  };
  for (const FloatRange& range : ranges) {
    if (inside(range)) continue;
    return fail(error, INGOT_ERROR_SAMPLING, thousandths(range.most), thousandths(range.value),
                "%s is %g: it must be %s", range.name, static_cast<double>(range.value), range.allowed);
  }
  for (uint32_t i = 0; i < s.bias_count; ++i) {
    if (std::isfinite(s.bias_values[i]) && std::fabs(s.bias_values[i]) <= 100.0f) continue;
    return fail(error, INGOT_ERROR_SAMPLING, 100000, thousandths(s.bias_values[i]),
                "the logit bias of token %u is %g: it must be -100 to 100", s.bias_tokens[i],
                static_cast<double>(s.bias_values[i]));
  }
  return INGOT_OK;
}

ingot_code check_counts(const plan::Header& plan, const ingot_sampling& s, ingot_error* error) {
  struct Count {
    const char* name;
    uint32_t value, most;
  };
  const Count counts[] = {
      {"top_logprobs", s.top_logprobs, plan::kTopLogprobsMax},
      {"want_logprob", s.want_logprob, 1},
      {"ignore_eos", s.ignore_eos, 1},
      {"the number of stop tokens", s.stop_count, plan::kStopTokensMax},
      {"the number of logit biases", s.bias_count, plan::kLogitBiasMax},
  };
  for (const Count& count : counts) {
    if (count.value <= count.most) continue;
    return fail(error, INGOT_ERROR_SAMPLING, count.most, count.value, "%s is %u: at most %u is allowed",
                count.name, count.value, count.most);
  }
  for (uint32_t i = 0; i < s.stop_count + s.bias_count; ++i) {
    const bool stop = i < s.stop_count;
    const uint32_t token = stop ? s.stop_tokens[i] : s.bias_tokens[i - s.stop_count];
    if (token < plan.vocabulary) continue;
    return fail(error, INGOT_ERROR_TOKEN, plan.vocabulary, token, "%s token %u is %u: token ids are below %u",
                stop ? "stop" : "logit bias", stop ? i : i - s.stop_count, token, plan.vocabulary);
  }
  return INGOT_OK;
}

ingot_code check_lengths(const plan::Header& plan, uint32_t prompt_count, const ingot_sampling& s,
                         uint32_t* max_tokens, ingot_error* error) {
  const uint32_t left = plan.context - prompt_count;
  *max_tokens = s.max_tokens;
  if (s.max_tokens == INGOT_NONE)
    *max_tokens = plan.default_max_tokens < left ? plan.default_max_tokens : left;
  if (*max_tokens == 0) {
    return fail(error, INGOT_ERROR_SAMPLING, left, 0, "max_tokens is 0: at least 1 token must be generated");
  }
  if (*max_tokens > left) {
    return fail(
        error, INGOT_ERROR_TOKENS_LONG, left, *max_tokens,
        "a prompt of %u tokens and max_tokens %u exceed the context of %u: max_tokens may be at most %u",
        prompt_count, *max_tokens, plan.context, left);
  }
  if (s.min_tokens > *max_tokens) {
    return fail(error, INGOT_ERROR_SAMPLING, *max_tokens, s.min_tokens,
                "min_tokens is %u: it may be at most max_tokens, which is %u", s.min_tokens, *max_tokens);
  }
  return INGOT_OK;
}

void fill(const plan::Header& plan, uint32_t prompt_count, uint32_t max_tokens, const ingot_sampling& s,
          plan::SamplingRecord* record) {
  std::memset(record, 0, sizeof *record);
  record->seed = s.seed;
  record->temperature = s.temperature;
  record->top_p = s.top_p;
  record->min_p = s.min_p;
  record->repetition_penalty = s.repetition_penalty;
  record->presence_penalty = s.presence_penalty;
  record->frequency_penalty = s.frequency_penalty;
  record->top_k = s.top_k;
  record->top_logprobs = s.top_logprobs;
  record->want_logprob = s.want_logprob;
  record->min_tokens = s.min_tokens;
  record->max_tokens = max_tokens;
  record->ignore_eos = s.ignore_eos;
  record->stop_count = s.stop_count;
  record->bias_count = s.bias_count;
  for (uint32_t i = 0; i < s.stop_count; ++i) record->stop_tokens[i] = s.stop_tokens[i];
  for (uint32_t i = 0; i < s.bias_count; ++i) record->bias_tokens[i] = s.bias_tokens[i];
  for (uint32_t i = 0; i < s.bias_count; ++i) record->bias_values[i] = s.bias_values[i];
  record->prompt_count = prompt_count;
  record->eos_count = s.ignore_eos == 1 ? 0 : plan.eos_count;
  for (uint32_t i = 0; i < record->eos_count; ++i) record->eos_tokens[i] = plan.eos_tokens[i];
}

}  // namespace

ingot_code choose(const plan::Header& plan, const ingot_options* options, Choice* choice,
                  ingot_error* error) {
  const ingot_options none = {};
  const ingot_options& o = options == nullptr ? none : *options;
  const uint64_t granules_max = plan.granules_max;
  const uint64_t granules =
      o.kv_tokens / plan::kGranuleTokens + (o.kv_tokens % plan::kGranuleTokens != 0 ? 1 : 0);
  if (granules > granules_max)
    return option(error, "kv_tokens", granules_max * plan::kGranuleTokens, o.kv_tokens);
  if (o.requests > plan.requests_max) return option(error, "requests", plan.requests_max, o.requests);
  if (o.step_rows > plan.rows_max) return option(error, "step_rows", plan.rows_max, o.step_rows);
  if (o.threads > cpu::kThreadsMax) {
    return fail(error, INGOT_ERROR_OPTION, cpu::kThreadsMax, o.threads,
                "threads is %u: at most %u is allowed", o.threads, cpu::kThreadsMax);
  }
  if (o.lock_memory > 1) {
    return fail(error, INGOT_ERROR_OPTION, 1, o.lock_memory, "lock_memory is %u: it must be 0 or 1",
                o.lock_memory);
  }
  if (o.isa > INGOT_ISA_AVX2) {
    return fail(error, INGOT_ERROR_OPTION, INGOT_ISA_AVX2, o.isa,
                "isa is %u: it must be 0 (auto), 1 (scalar) or 2 (avx2)", o.isa);
  }
  if (reinterpret_cast<uintptr_t>(o.memory) % plan::kHugePageBytes != 0) {
    return fail(error, INGOT_ERROR_OPTION, plan::kHugePageBytes, reinterpret_cast<uintptr_t>(o.memory),
                "memory is not aligned: its address must be a multiple of %u", plan::kHugePageBytes);
  }
  if (o.lock_memory == 1 && o.memory != nullptr) {
    return fail(error, INGOT_ERROR_OPTION, 0, 1,
                "lock_memory is 1 and memory is the caller's: lock that block yourself");
  }
  choice->granules = granules == 0 ? plan.granules_default : static_cast<uint32_t>(granules);
  choice->requests = o.requests == 0 ? plan.requests_default : o.requests;
  choice->step_rows = o.step_rows == 0 ? plan.rows_max : o.step_rows;
  const uint32_t processors = cpu::processors();
  choice->threads = o.threads != 0                  ? o.threads
                    : processors < cpu::kThreadsMax ? processors
                                                    : cpu::kThreadsMax;
  choice->lock_memory = o.lock_memory == 1;
  choice->memory = static_cast<std::byte*>(o.memory);
  return INGOT_OK;
}

ingot_code choose_isa(const plan::Header& plan, const ingot_options* options, Choice* choice,
                      ingot_error* error) {
  if (plan.target != static_cast<uint32_t>(plan::Target::kCpu)) {
    return fail(error, INGOT_ERROR_TARGET, static_cast<uint64_t>(plan::Target::kCpu), plan.target,
                "the plan is for target %u: this build runs target 1 (cpu); build the plan with --target cpu",
                plan.target);
  }
  const uint32_t asked = options == nullptr ? 0 : options->isa;
  choice->isa = cpu::isa_supported(cpu::Isa::kAvx2) ? cpu::Isa::kAvx2 : cpu::Isa::kScalar;
  if (asked != INGOT_ISA_AUTO) choice->isa = static_cast<cpu::Isa>(asked);
  if (cpu::isa_supported(choice->isa)) return INGOT_OK;
  return fail(error, INGOT_ERROR_TARGET, INGOT_ISA_SCALAR, asked,
              "this machine does not run isa %u (avx2 with fma and f16c): use 0 (auto) or 1 (scalar)", asked);
}

ingot_code check_tokens(const plan::Header& plan, std::span<const uint32_t> tokens, ingot_error* error) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < plan.vocabulary) continue;
    return fail(error, INGOT_ERROR_TOKEN, plan.vocabulary, tokens[i],
                "token %llu of the prompt is %u: token ids are below %u", static_cast<Wide>(i), tokens[i],
                plan.vocabulary);
  }
  return INGOT_OK;
}

ingot_code check_request(const plan::Header& plan, std::span<const uint32_t> prompt,
                         const ingot_sampling& sampling, plan::SamplingRecord* record, ingot_error* error) {
  if (prompt.empty()) {
    return fail(error, INGOT_ERROR_PROMPT_EMPTY, 1, 0, "the prompt has no token: at least 1 is needed");
  }
  if (prompt.size() > plan.context - 1) {
    return fail(error, INGOT_ERROR_PROMPT_LONG, plan.context - 1, prompt.size(),
                "the prompt has %llu tokens: at most %u fit the context of %u with one generated token",
                static_cast<Wide>(prompt.size()), plan.context - 1, plan.context);
  }
  const auto prompt_count = static_cast<uint32_t>(prompt.size());
  uint32_t max_tokens = 0;
  ingot_code code = check_tokens(plan, prompt, error);
  if (code == INGOT_OK) code = check_counts(plan, sampling, error);
  if (code == INGOT_OK) code = check_floats(sampling, error);
  if (code == INGOT_OK) code = check_lengths(plan, prompt_count, sampling, &max_tokens, error);
  if (code == INGOT_OK) fill(plan, prompt_count, max_tokens, sampling, record);
  return code;
}

}  // namespace ingot::core
