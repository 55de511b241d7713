// INV-01: between seal and close the runtime calls no allocator. This program defines malloc and its kin,
// mmap, munmap, brk and sbrk itself, counts their calls while a flag is up, and generates tokens. It proves
// its own counters first.
//   allocation_test PLAN TOKENS THREADS
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "ingot.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<uint64_t> calls{0};

void count() {
  if (watching.load(std::memory_order_relaxed)) calls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(size_t items, size_t bytes) {
  count();
  return __libc_calloc(items, bytes);
}
void* realloc(void* block, size_t bytes) {
  count();
  return __libc_realloc(block, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  count();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = memalign(alignment, bytes);
  return *block == nullptr ? 12 : 0;
}
void free(void* block) {
  count();
  __libc_free(block);
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  count();
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
int munmap(void* address, size_t bytes) noexcept {
  count();
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}
int brk(void*) noexcept {
  count();
  return -1;
}
void* sbrk(intptr_t) noexcept {
  count();
  return reinterpret_cast<void*>(-1);
}
}

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "allocation_test: %s\n", what);
  std::exit(1);
}

// Request i of a round: greedy, top-k with logprobs, or penalties with top-p; 40 tokens.
ingot_sampling sampling_of(uint32_t round, uint32_t i) {
  ingot_sampling sampling = ingot_sampling_default();
  sampling.seed = round;
  sampling.max_tokens = 40;
  sampling.ignore_eos = 1;
  sampling.temperature = i == 0 ? 0.0f : 0.9f;
  sampling.top_k = i == 1 ? 20 : 0;
  sampling.top_logprobs = i == 1 ? 20 : 0;
  sampling.top_p = i == 2 ? 0.8f : 1.0f;
  sampling.repetition_penalty = i == 2 ? 1.2f : 1.0f;
  return sampling;
}

// Runs rounds of three requests, a refusal and a cancellation until `tokens` tokens were generated.
uint64_t generate(ingot_engine* engine, uint64_t tokens) {
  ingot_error error;
  ingot_stats stats = {};
  for (uint32_t round = 0; stats.tokens_generated < tokens; ++round) {
    ingot_handle handles[3];
    for (uint32_t i = 0; i < 3; ++i) {
      const uint32_t prompt[] = {3, 4 + i, 5 + round % 30, 6};
      const ingot_sampling sampling = sampling_of(round, i);
      require(ingot_submit(engine, prompt, 4, &sampling, &handles[i], &error) == INGOT_OK, error.text);
    }
    ingot_handle refused;
    require(ingot_submit(engine, nullptr, 0, nullptr, &refused, &error) == INGOT_ERROR_PROMPT_EMPTY,
            "a refusal");
    if (round % 4 == 3) require(ingot_cancel(engine, handles[2], &error) == INGOT_OK, error.text);
    for (uint32_t rows = 1; rows != 0;) require(ingot_step(engine, &rows, &error) == INGOT_OK, error.text);
    for (const ingot_handle handle : handles) {
      ingot_event events[64];
      uint32_t count = 0;
      require(ingot_poll(engine, handle, events, 64, &count, &error) == INGOT_OK && count > 0, "events");
      require(events[count - 1].finish != INGOT_FINISH_NONE, "every request ends");
    }
    ingot_get_stats(engine, &stats);
  }
  return stats.tokens_generated;
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "usage: allocation_test PLAN TOKENS THREADS");
  watching = true;
  void* volatile probe = std::malloc(1);
  std::free(probe);
  require(calls == 2, "the counters see malloc and free");
  watching = false;
  calls = 0;

  ingot_error error;
  ingot_plan* plan = nullptr;
  ingot_engine* engine = nullptr;
  require(ingot_plan_open(argv[1], &plan, &error) == INGOT_OK, error.text);
  ingot_options options = {};
  options.threads = static_cast<uint32_t>(std::atoi(argv[3]));
  require(ingot_create(plan, &options, &engine, &error) == INGOT_OK, error.text);
  require(ingot_seal(engine, &error) == INGOT_OK, error.text);
  watching = true;
  const uint64_t generated = generate(engine, static_cast<uint64_t>(std::atoll(argv[2])));
  const uint64_t counted = calls;
  watching = false;
  ingot_stats stats;
  ingot_get_stats(engine, &stats);
  ingot_close(engine);
  ingot_plan_close(plan);
  std::printf("%llu tokens, %llu calls\n", static_cast<unsigned long long>(generated),
              static_cast<unsigned long long>(counted));
  require(counted == 0 && stats.allocations_after_seal == 0, "nothing is allocated between seal and close");
}
