#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace ingot::core {
namespace {

using Wide = unsigned long long;

constexpr uint32_t kState = static_cast<uint32_t>(plan::Region::kState) - 1;

ingot_code memory_error(const ingot_plan& plan, const Choice& choice, uint32_t region, uint64_t available,
                        ingot_error* error) {
  const uint64_t bytes = region_bytes(plan.view.regions[region], choice.granules, choice.requests);
  return fail(
      error, INGOT_ERROR_MEMORY, available, bytes,
      "region %s needs %llu bytes and %llu are available: choose fewer kv_tokens or requests, or free memory",
      region_name(region), static_cast<Wide>(bytes), static_cast<Wide>(available));
}

// Compares with what the machine says it has, so that a refusal comes before the kernel kills anybody.
ingot_code check_available(const ingot_plan& plan, const Choice& choice, ingot_error* error) {
  uint64_t left = available_bytes();
  for (uint32_t i = 0; i < kRegionCount; ++i) {
    const uint64_t bytes = region_bytes(plan.view.regions[i], choice.granules, choice.requests);
    if (bytes > left) return memory_error(plan, choice, i, left, error);
    left -= bytes;
  }
  return INGOT_OK;
}

// Reserves each region once, or places it in the caller's block: one after another, each at a multiple of
// 4096.
ingot_code reserve(const ingot_plan& plan, const Choice& choice, Memory& memory,
                   std::byte* bases[kRegionCount], ingot_error* error) {
  if (choice.memory == nullptr) {
    if (const ingot_code code = check_available(plan, choice, error); code != INGOT_OK) return code;
  }
  std::byte* next = choice.memory;
  for (uint32_t i = 0; i < kRegionCount; ++i) {
    const plan::RegionRecord& region = plan.view.regions[i];
    const uint64_t bytes = region_bytes(region, choice.granules, choice.requests);
    bases[i] = next;
    if (choice.memory != nullptr) {
      next += bytes;
    } else if (bytes != 0) {
      bases[i] = memory.reserve(bytes, region.alignment, region.alignment == plan::kHugePageBytes);
      if (bases[i] == nullptr) return memory_error(plan, choice, i, available_bytes(), error);
    }
  }
  if (choice.memory != nullptr) {
    std::memset(bases[kState], 0, region_bytes(plan.view.regions[kState], choice.granules, choice.requests));
  }
  return INGOT_OK;
}

ingot_code fill(const ingot_plan& plan, std::byte* const bases[kRegionCount], ingot_error* error) {
  for (uint32_t i = 0; i < kRegionCount; ++i) {
    const plan::RegionRecord& region = plan.view.regions[i];
    if (region.section == 0) continue;
    const auto kind = static_cast<plan::Section>(region.section);
    const ingot_code code = read_section(plan, kind, {bases[i], region.bytes_fixed}, error);
    if (code != INGOT_OK) return code;
  }
  return INGOT_OK;
}

}  // namespace

const char* region_name(uint32_t index) {
  constexpr const char* kNames[kRegionCount] = {"weights", "scales", "state", "arena", "kv", "io"};
  return kNames[index];
}

ingot_code Engine::create(const ingot_plan& plan, const ingot_options* options, Engine** engine,
                          ingot_error* error) {
  *engine = nullptr;
  Choice choice;
  ingot_code code = choose(*plan.view.header, options, &choice, error);
  if (code == INGOT_OK) code = choose_isa(*plan.view.header, options, &choice, error);
  if (code != INGOT_OK) return code;
  Memory memory;  // gives everything back when something below fails
  std::byte* bases[kRegionCount] = {};
  code = reserve(plan, choice, memory, bases, error);
  if (code == INGOT_OK) code = fill(plan, bases, error);
  if (code != INGOT_OK) return code;
  Regions regions;
  regions.set(plan.view, bases, choice.granules, choice.requests);
  auto* created = new (find_tables(plan.view, regions).engine.data) Engine(plan, choice);
  code = created->start(memory, regions, error);
  if (code != INGOT_OK) {
    created->~Engine();
    return code;
  }
  created->memory_.take(memory);
  *engine = created;
  return succeed(error);
}

ingot_code Engine::start(Memory& memory, const Regions& regions, ingot_error* error) {
  const PlanView& plan = plan_->view;
  regions_ = regions;
  tables_ = find_tables(plan, regions_);
  for (const plan::RegionRecord& region : plan.regions) {
    bytes_reserved_ += region_bytes(region, choice_.granules, choice_.requests);
  }
  const uint32_t missing = executor_.bind(plan, regions_, choice_.requests, choice_.isa);
  if (missing != plan::kNoneIndex) {
    return fail(error, INGOT_ERROR_TARGET, 0, missing,
                "this build has no kernel %u: use the release that built the plan", missing);
  }
  if (choice_.lock_memory && !memory.lock()) {
    return fail(
        error, INGOT_ERROR_MEMORY, 0, bytes_reserved_,
        "%llu bytes cannot be locked: raise the limit on locked memory (ulimit -l) or leave lock_memory out",
        static_cast<Wide>(bytes_reserved_));
  }
  if (const int number = executor_.start(choice_.threads); number != 0) {
    return fail(error, INGOT_ERROR_THREADS, 0, choice_.threads,
                "cannot start %u threads: %s (error %d): use fewer", choice_.threads, errno_text(number),
                number);
  }
  stepper_.reset(plan, tables_, executor_, choice_.requests, choice_.granules, choice_.step_rows);
  return INGOT_OK;
}

void Engine::close(Engine* engine) {
  engine->executor_.stop();
  Memory memory;  // outlives the object that lies in it
  memory.take(engine->memory_);
  engine->~Engine();
}

ingot_code Engine::seal(ingot_error* error) {
  if (sealed_)
    return fail(error, INGOT_ERROR_STATE, 0, 1, "the engine is already sealed: seal it once, after create");
  if (const ingot_code code = self_test(error); code != INGOT_OK) return code;
  memory_.seal();
  sealed_ = true;
  return succeed(error);
}

// Runs the plan's golden prompt and compares the logits after it with the stored ones, so that a machine or
// build that computes something else is noticed before it serves.
ingot_code Engine::self_test(ingot_error* error) {
  const std::span<const std::byte> section = plan_->view.section(plan::Section::kSelftest);
  if (section.empty()) return INGOT_OK;
  const auto& test = *reinterpret_cast<const plan::SelftestRecord*>(section.data());
  const auto* prompt = reinterpret_cast<const uint32_t*>(section.data() + sizeof test);
  const uint32_t* ids = prompt + test.prompt_count;
  const auto* probes = reinterpret_cast<const float*>(ids + test.probe_count);
  if (const ingot_code code = check_room(test.prompt_count, error); code != INGOT_OK) return code;
  const Counters before = stepper_.counters();
  stepper_.score({prompt, test.prompt_count}, plan_->view.header->rows_max, test.prompt_count - 1, nullptr);
  stepper_.set_counters(before);
  const float* logits = tables_.logits;
  double squares = 0;
  double worst = 0;
  for (uint32_t i = 0; i < test.probe_count; ++i) {
    const double difference = std::fabs(static_cast<double>(logits[ids[i]]) - static_cast<double>(probes[i]));
    squares += static_cast<double>(probes[i]) * static_cast<double>(probes[i]);
    worst = difference <= worst ? worst : difference;  // NaN is the worst
  }
  const double scale = std::sqrt(squares / test.probe_count);
  const double allowed = static_cast<double>(test.tolerance) * scale;
  uint32_t next = 0;
  for (uint32_t i = 1; i < plan_->view.header->vocabulary; ++i) next = logits[i] > logits[next] ? i : next;
  const bool clear = static_cast<double>(test.margin) > 2 * allowed;
  if (worst <= allowed && (!clear || next == test.next_token)) return INGOT_OK;
  const double found = scale > 0 ? worst / scale * 1e6 : 1e18;
  return fail(error, INGOT_ERROR_SELFTEST, static_cast<uint64_t>(static_cast<double>(test.tolerance) * 1e6),
              found < 1e18 ? static_cast<uint64_t>(found) : UINT64_MAX,
              "the self-test computed other logits than the plan holds (off by %.3g, at most %.3g; next "
              "token %u, stored "
              "%u): rebuild the plan with this release",
              found * 1e-6, static_cast<double>(test.tolerance), next, test.next_token);
}

ingot_code Engine::check_sealed(const char* call, ingot_error* error) const {
  if (sealed_) return INGOT_OK;
  return fail(error, INGOT_ERROR_STATE, 1, 0, "%s was called before seal: seal the engine first", call);
}

// Whether a slot and granules for `tokens` are free.
ingot_code Engine::check_room(uint64_t tokens, ingot_error* error) const {
  const GranulePool& pool = stepper_.granules();
  const uint32_t needed = GranulePool::granules_for(tokens);
  if (needed > pool.count()) {
    return fail(
        error, INGOT_ERROR_POOL, pool.count(), needed,
        "%llu tokens need %u granules and the pool has %u: open with more kv_tokens or ask for fewer tokens",
        static_cast<Wide>(tokens), needed, pool.count());
  }
  if (stepper_.free_slots() == 0) {
    return fail(error, INGOT_ERROR_BUSY, stepper_.slots(), stepper_.slots(),
                "all %u request slots are taken: poll requests to their end or open with more requests",
                stepper_.slots());
  }
  if (needed > pool.free_count()) {
    return fail(error, INGOT_ERROR_CAPACITY, pool.free_count(), needed,
                "%llu tokens need %u granules and %u of %u are free: try again when a request has ended",
                static_cast<Wide>(tokens), needed, pool.free_count(), pool.count());
  }
  return INGOT_OK;
}

ingot_code Engine::submit(std::span<const uint32_t> prompt, const ingot_sampling& sampling,
                          ingot_handle* handle, ingot_error* error) {
  *handle = 0;
  plan::SamplingRecord record;
  ingot_code code = check_sealed("submit", error);
  if (code == INGOT_OK) code = check_request(*plan_->view.header, prompt, sampling, &record, error);
  if (code == INGOT_OK) code = check_room(prompt.size() + record.max_tokens, error);
  if (code != INGOT_OK) return code;
  *handle = stepper_.admit(prompt, record);
  return succeed(error);
}

ingot_code Engine::step(uint32_t* rows, ingot_error* error) {
  *rows = 0;
  if (const ingot_code code = check_sealed("step", error); code != INGOT_OK) return code;
  *rows = stepper_.step();
  return succeed(error);
}

ingot_code Engine::find(ingot_handle handle, uint32_t* slot, ingot_error* error) const {
  *slot = stepper_.find(handle);
  if (*slot != plan::kNoneIndex) return INGOT_OK;
  return fail(error, INGOT_ERROR_HANDLE, stepper_.slots(), handle,
              "handle %llu names no live request: a handle ends when its last event was taken",
              static_cast<Wide>(handle));
}

ingot_code Engine::poll(ingot_handle handle, std::span<plan::EventRecord> events, uint32_t* count,
                        ingot_error* error) {
  *count = 0;
  uint32_t slot = 0;
  ingot_code code = check_sealed("poll", error);
  if (code == INGOT_OK) code = find(handle, &slot, error);
  if (code != INGOT_OK) return code;
  *count = stepper_.poll(slot, events);
  return succeed(error);
}

ingot_code Engine::cancel(ingot_handle handle, ingot_error* error) {
  uint32_t slot = 0;
  ingot_code code = check_sealed("cancel", error);
  if (code == INGOT_OK) code = find(handle, &slot, error);
  if (code != INGOT_OK) return code;
  stepper_.cancel(slot);
  return succeed(error);
}

ingot_code Engine::score(std::span<const uint32_t> tokens, uint32_t chunk, float* logits,
                         ingot_error* error) {
  const plan::Header& header = *plan_->view.header;
  if (const ingot_code code = check_sealed("score", error); code != INGOT_OK) return code;
  if (tokens.empty())
    return fail(error, INGOT_ERROR_PROMPT_EMPTY, 1, 0, "there is no token to score: at least 1 is needed");
  if (tokens.size() > header.context) {
    return fail(error, INGOT_ERROR_PROMPT_LONG, header.context, tokens.size(),
                "%llu tokens were given to score: the context is %u", static_cast<Wide>(tokens.size()),
                header.context);
  }
  if (chunk > header.rows_max) {
    return fail(error, INGOT_ERROR_OPTION, header.rows_max, chunk,
                "chunk is %u: the largest bucket has %u rows", chunk, header.rows_max);
  }
  ingot_code code = check_tokens(header, tokens, error);
  if (code == INGOT_OK) code = check_room(tokens.size(), error);
  if (code != INGOT_OK) return code;
  stepper_.score(tokens, chunk == 0 ? header.rows_max : chunk, 0, logits);
  return succeed(error);
}

void Engine::stats(ingot_stats* stats) const {
  const Counters& counters = stepper_.counters();
  *stats = ingot_stats{};
  stats->steps = counters.steps;
  stats->rows = counters.rows;
  stats->tokens_generated = counters.tokens_generated;
  stats->requests_finished = counters.requests_finished;
  stats->requests_running = stepper_.running();
  stats->requests = stepper_.slots();
  stats->granules_free = stepper_.granules().free_count();
  stats->granules = stepper_.granules().count();
  stats->bytes_reserved = bytes_reserved_;
  stats->allocations_after_seal = memory_.refused_after_seal();
  stats->threads = executor_.threads();
  stats->isa = static_cast<uint32_t>(executor_.isa());
}

}  // namespace ingot::core
