// INV-06: a request's tokens and logprobs, bit for bit, are the same alone on clean memory and among seven
// others over memory whose KV, arena and IO bytes were all 0xFF (NaN in every format). Granules are scrambled
// by requests that came and went.
//   neighbours_test PLAN THREADS ISA: prints the request's token and logprob bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ingot.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr uint32_t kPrompt = 150;
constexpr uint32_t kGenerated = 60;
constexpr uint64_t kAlignment = uint64_t{2} << 20;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "neighbours_test: %s\n", what);
  std::exit(1);
}

struct Fixture {
  ingot_options options = {};
  ingot_region regions[INGOT_REGION_COUNT];
  unsigned char* block = nullptr;
  unsigned char* kv = nullptr;
  ingot_engine* engine = nullptr;
  ingot_error error;

  // An engine over a block in which everything that is not weights, scales or state is `poison`.
  Fixture(const ingot_plan* plan, uint32_t threads, uint32_t isa, int poison) {
    options.requests = 8;
    options.kv_tokens = 32 * 128;
    options.threads = threads;
    options.isa = isa;
    uint64_t total = 0;
    require(ingot_regions(plan, &options, regions, &total, &error) == INGOT_OK, error.text);
    block =
        static_cast<unsigned char*>(std::aligned_alloc(kAlignment, (total / kAlignment + 1) * kAlignment));
    std::memset(block, poison, total);
    kv = block;
    for (uint32_t i = 0; std::strcmp(regions[i].name, "kv") != 0; ++i) kv += regions[i].bytes;
    options.memory = block;
    require(ingot_create(plan, &options, &engine, &error) == INGOT_OK, error.text);
    require(ingot_seal(engine, &error) == INGOT_OK, error.text);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;
  ~Fixture() {
    ingot_close(engine);
    std::free(block);
  }

  ingot_handle submit(uint32_t prompt_count, uint32_t max_tokens, uint32_t salt) {
    std::vector<uint32_t> prompt(prompt_count);
    for (uint32_t i = 0; i < prompt_count; ++i) prompt[i] = 3 + (i * 7 + salt * 13 + i * i % 11) % 45;
    ingot_sampling sampling = ingot_sampling_default();
    sampling.temperature = salt % 2 == 0 ? 0.0f : 1.0f;
    sampling.seed = salt;
    sampling.want_logprob = 1;
    sampling.ignore_eos = 1;
    sampling.max_tokens = max_tokens;
    ingot_handle handle = 0;
    const ingot_code code = ingot_submit(engine, prompt.data(), prompt_count, &sampling, &handle, &error);
    require(code == INGOT_OK, error.text);
    return handle;
  }
  void step() { require(ingot_step(engine, nullptr, &error) == INGOT_OK, error.text); }
  // Takes what there is; true when the request has ended.
  bool take(ingot_handle handle, std::vector<ingot_event>* events) {
    ingot_event taken[8];
    uint32_t count = 0;
    require(ingot_poll(engine, handle, taken, 8, &count, &error) == INGOT_OK, error.text);
    events->insert(events->end(), taken, taken + count);
    return count > 0 && taken[count - 1].finish != INGOT_FINISH_NONE;
  }
  std::vector<ingot_event> finish(ingot_handle handle) {
    std::vector<ingot_event> events;
    do step();
    while (!take(handle, &events));
    return events;
  }
};

// Comes and goes so that the free list is in no order and granules hold stale keys and values.
void scramble(Fixture& fixture) {
  ingot_handle handles[8];
  for (uint32_t i = 0; i < 8; ++i) handles[i] = fixture.submit(60 + 12 * i, 30, 50 + i);
  for (uint32_t i = 0; i < 40; ++i) fixture.step();
  for (const uint32_t i : {3u, 0u, 6u, 1u, 7u, 2u, 5u, 4u}) {
    std::vector<ingot_event> ignored;
    ingot_cancel(fixture.engine, handles[i], nullptr);
    while (!fixture.take(handles[i], &ignored)) fixture.step();
  }
}

std::vector<ingot_event> among_others(Fixture& fixture, uint32_t salt) {
  scramble(fixture);
  ingot_handle others[7];
  for (uint32_t i = 0; i < 3; ++i) others[i] = fixture.submit(5 + 60 * i, 40, 80 + i);
  for (uint32_t i = 0; i < 20; ++i) fixture.step();
  const ingot_handle watched = fixture.submit(kPrompt, kGenerated, salt);
  for (uint32_t i = 3; i < 7; ++i) others[i] = fixture.submit(1 + 33 * i, 50, 80 + i);
  std::vector<ingot_event> events;
  for (uint32_t n = 0;; ++n) {
    fixture.step();
    if (fixture.take(watched, &events)) break;
    if (n == 30)
      require(ingot_cancel(fixture.engine, others[4], &fixture.error) == INGOT_OK, "a neighbour leaves");
  }
  return events;
}

// among_others under round-towards-zero, flush-to-zero and denormals-are-zero.
std::vector<ingot_event> under_another_mode(Fixture& fixture, uint32_t salt) {
#if defined(__x86_64__)
  const uint32_t before = _mm_getcsr();
  const uint32_t hostile = 0x1F80u | 0x6000u | 0x8000u | 0x0040u;
  _mm_setcsr(hostile);
  const std::vector<ingot_event> events = among_others(fixture, salt);
  const uint32_t after = _mm_getcsr();
  _mm_setcsr(before);
  require((after & ~0x3Fu) == hostile, "the caller's rounding mode is left as it was");
  return events;
#else
  return among_others(fixture, salt);
#endif
}

bool same(const std::vector<ingot_event>& a, const std::vector<ingot_event>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(ingot_event)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "usage: neighbours_test PLAN THREADS ISA");
  ingot_error error;
  ingot_plan* plan = nullptr;
  require(ingot_plan_open(argv[1], &plan, &error) == INGOT_OK, error.text);
  const auto threads = static_cast<uint32_t>(std::atoi(argv[2]));
  const auto isa = static_cast<uint32_t>(std::atoi(argv[3]));
  for (const uint32_t salt : {0u, 1u}) {
    Fixture clean(plan, threads, isa, 0);
    const std::vector<ingot_event> alone = clean.finish(clean.submit(kPrompt, kGenerated, salt));
    Fixture poisoned(plan, threads, isa, 0xFF);
    const unsigned char* last = poisoned.kv + 31 * poisoned.regions[4].bytes_per_granule;
    require(*last == 0xFF, "granules are poisoned before use");
    const std::vector<ingot_event> among = under_another_mode(poisoned, salt);
    require(*last == 0xFF, "a granule that nobody leased keeps its poison");
    require(alone.size() == kGenerated, "the request runs to its end");
    require(same(alone, among), "alone and among others are the same bits");
    const std::vector<ingot_event> other = clean.finish(clean.submit(kPrompt, kGenerated, salt + 2));
    require(!same(alone, other), "another prompt gives other bits: the comparison can fail");
    for (const ingot_event& event : alone) {
      uint32_t bits;
      std::memcpy(&bits, &event.logprob, sizeof bits);
      std::printf("%u %08x\n", event.token, bits);
    }
  }
  ingot_plan_close(plan);
}
