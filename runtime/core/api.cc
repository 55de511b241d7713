// The C API of ingot.h over the C++ core: pointers are asserted, everything else is checked where it is used.
// No call throws; a NULL where a pointer is required is a programmer error.
#include <cstring>
#include <string_view>

#include "engine.h"

static_assert(sizeof(ingot_event) == sizeof(ingot::plan::EventRecord));
static_assert(offsetof(ingot_event, top_logprobs) == offsetof(ingot::plan::EventRecord, top_logprobs));
static_assert(INGOT_NONE == ingot::plan::kNoneIndex);
static_assert(INGOT_REGION_COUNT == ingot::core::kRegionCount);
static_assert(INGOT_STOP_TOKENS_MAX == ingot::plan::kStopTokensMax);
static_assert(INGOT_LOGIT_BIAS_MAX == ingot::plan::kLogitBiasMax);
static_assert(INGOT_TOP_LOGPROBS_MAX == ingot::plan::kTopLogprobsMax);

namespace {

using ingot::core::Engine;

Engine& core_of(ingot_engine* engine) {
  INGOT_ASSERT(engine != nullptr, "api", "an engine is needed");
  return *reinterpret_cast<Engine*>(engine);
}

#define INGOT_NEEDS(pointer) INGOT_ASSERT((pointer) != nullptr, "api", #pointer " must not be NULL")

}  // namespace

extern "C" {

ingot_code ingot_plan_open(const char* path, ingot_plan** plan, ingot_error* error) {
  INGOT_NEEDS(path);
  INGOT_NEEDS(plan);
  return ingot::core::open_plan(path, plan, error);
}

void ingot_plan_close(ingot_plan* plan) {
  if (plan != nullptr) ingot::core::drop_plan(*plan);
}

void ingot_plan_get_info(const ingot_plan* plan, ingot_plan_info* info) {
  INGOT_NEEDS(plan);
  INGOT_NEEDS(info);
  const ingot::plan::Header& header = *plan->view.header;
  *info = ingot_plan_info{};
  std::memcpy(info->hash, header.header_hash, sizeof info->hash);
  info->file_bytes = header.file_bytes;
  info->target = header.target;
  info->vocabulary = header.vocabulary;
  info->layers = header.layers;
  info->hidden = header.hidden;
  info->query_heads = header.query_heads;
  info->kv_heads = header.kv_heads;
  info->head_size = header.head_size;
  info->context = header.context;
  info->rows_max = header.rows_max;
  info->head_rows_max = header.head_rows_max;
  info->requests_max = header.requests_max;
  info->requests_default = header.requests_default;
  info->default_max_tokens = header.default_max_tokens;
  info->kv_tokens_max = uint64_t{header.granules_max} * ingot::plan::kGranuleTokens;
  info->kv_tokens_default = uint64_t{header.granules_default} * ingot::plan::kGranuleTokens;
  info->bos_token = header.bos_token;
  info->eos_count = header.eos_count;
  std::memcpy(info->eos_tokens, header.eos_tokens, sizeof info->eos_tokens);
  info->weight_bytes = plan->view.regions[0].bytes_fixed + plan->view.regions[1].bytes_fixed;
}

const char* ingot_plan_text(const ingot_plan* plan, const char* section, uint64_t* bytes) {
  INGOT_NEEDS(plan);
  INGOT_NEEDS(section);
  INGOT_NEEDS(bytes);
  struct Text {
    std::string_view name;
    ingot::plan::Section kind;
  };
  constexpr Text kTexts[] = {{"meta", ingot::plan::Section::kMeta},
                             {"drift", ingot::plan::Section::kDrift},
                             {"tokenizer", ingot::plan::Section::kTokenizer},
                             {"template", ingot::plan::Section::kTemplate}};
  *bytes = 0;
  for (const Text& text : kTexts) {
    if (text.name != section) continue;
    const auto content = plan->view.section(text.kind);
    *bytes = content.size();
    return content.empty() ? nullptr : reinterpret_cast<const char*>(content.data());
  }
  return nullptr;
}

uint32_t ingot_verify(const void* data, uint64_t bytes, uint64_t* index) {
  INGOT_ASSERT(data != nullptr || bytes == 0, "api", "data must not be NULL");
  uint64_t ignored = 0;
  const std::span file(static_cast<const std::byte*>(data), bytes);
  return static_cast<uint32_t>(ingot::verify(file, index == nullptr ? &ignored : index, nullptr));
}

const char* ingot_reason_text(uint32_t reason) {
  return ingot::reason_text(static_cast<ingot::plan::Reason>(reason));
}

ingot_code ingot_regions(const ingot_plan* plan, const ingot_options* options,
                         ingot_region regions[INGOT_REGION_COUNT], uint64_t* total_bytes,
                         ingot_error* error) {
  INGOT_NEEDS(plan);
  INGOT_NEEDS(regions);
  ingot::core::Choice choice;
  const ingot_code code = ingot::core::choose(*plan->view.header, options, &choice, error);
  if (code != INGOT_OK) return code;
  uint64_t total = 0;
  for (uint32_t i = 0; i < INGOT_REGION_COUNT; ++i) {
    const ingot::plan::RegionRecord& record = plan->view.regions[i];
    regions[i] = ingot_region{};
    std::strncpy(regions[i].name, ingot::core::region_name(i), sizeof regions[i].name - 1);
    regions[i].bytes = ingot::region_bytes(record, choice.granules, choice.requests);
    regions[i].bytes_fixed = record.bytes_fixed;
    regions[i].bytes_per_granule = record.bytes_per_granule;
    regions[i].bytes_per_request = record.bytes_per_request;
    total += regions[i].bytes;
  }
  if (total_bytes != nullptr) *total_bytes = total;
  return ingot::core::succeed(error);
}

ingot_code ingot_create(const ingot_plan* plan, const ingot_options* options, ingot_engine** engine,
                        ingot_error* error) {
  INGOT_NEEDS(plan);
  INGOT_NEEDS(engine);
  Engine* created = nullptr;
  const ingot_code code = Engine::create(*plan, options, &created, error);
  *engine = reinterpret_cast<ingot_engine*>(created);
  return code;
}

ingot_code ingot_seal(ingot_engine* engine, ingot_error* error) { return core_of(engine).seal(error); }

void ingot_close(ingot_engine* engine) {
  if (engine != nullptr) Engine::close(&core_of(engine));
}

ingot_sampling ingot_sampling_default(void) {
  ingot_sampling sampling = {};  // temperature 0: greedy
  sampling.top_p = 1.0f;
  sampling.repetition_penalty = 1.0f;
  sampling.max_tokens = INGOT_NONE;
  return sampling;
}

ingot_code ingot_submit(ingot_engine* engine, const uint32_t* prompt, uint32_t prompt_count,
                        const ingot_sampling* sampling, ingot_handle* handle, ingot_error* error) {
  INGOT_ASSERT(prompt != nullptr || prompt_count == 0, "api", "prompt must not be NULL");
  INGOT_NEEDS(handle);
  const ingot_sampling chosen = sampling == nullptr ? ingot_sampling_default() : *sampling;
  return core_of(engine).submit({prompt, prompt_count}, chosen, handle, error);
}

ingot_code ingot_step(ingot_engine* engine, uint32_t* rows, ingot_error* error) {
  uint32_t ignored = 0;
  return core_of(engine).step(rows == nullptr ? &ignored : rows, error);
}

ingot_code ingot_poll(ingot_engine* engine, ingot_handle handle, ingot_event* events, uint32_t capacity,
                      uint32_t* count, ingot_error* error) {
  INGOT_ASSERT(events != nullptr || capacity == 0, "api", "events must not be NULL");
  INGOT_NEEDS(count);
  return core_of(engine).poll(handle, {reinterpret_cast<ingot::plan::EventRecord*>(events), capacity}, count,
                              error);
}

ingot_code ingot_cancel(ingot_engine* engine, ingot_handle handle, ingot_error* error) {
  return core_of(engine).cancel(handle, error);
}

void ingot_get_stats(const ingot_engine* engine, ingot_stats* stats) {
  INGOT_NEEDS(engine);
  INGOT_NEEDS(stats);
  reinterpret_cast<const Engine*>(engine)->stats(stats);
}

ingot_code ingot_score(ingot_engine* engine, const uint32_t* tokens, uint32_t count, uint32_t chunk,
                       float* logits, ingot_error* error) {
  INGOT_ASSERT(tokens != nullptr || count == 0, "api", "tokens must not be NULL");
  INGOT_ASSERT(logits != nullptr || count == 0, "api", "logits must not be NULL");
  return core_of(engine).score({tokens, count}, chunk, logits, error);
}

}  // extern "C"
