// The thread pool: every item is computed once per phase, a barrier shows all writes of the phase before, and
// nothing is lost between parking and waking. Run as it is and under ThreadSanitizer.
#include "cpu/pool.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr uint32_t kItems = 97;
constexpr uint32_t kPhases = 5;

struct Work {
  ingot::cpu::Pool* pool = nullptr;
  std::vector<uint32_t> values =
      std::vector<uint32_t>(kItems * (kPhases + 1), 0);  // not atomic: barriers order them
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "pool_test: %s\n", what);
  std::exit(1);
}

// Phase p writes item i from items i and i + 1 of phase p - 1, which other workers may have written.
void job(void* context) {
  auto* work = static_cast<Work*>(context);
  for (uint32_t phase = 1; phase <= kPhases; ++phase) {
    const uint32_t* before = &work->values[(phase - 1) * kItems];
    uint32_t* after = &work->values[phase * kItems];
    for (uint32_t begin = work->pool->claim(3); begin < kItems; begin = work->pool->claim(3)) {
      for (uint32_t i = begin; i < begin + 3 && i < kItems; ++i)
        after[i] += before[i] + before[(i + 1) % kItems] + 1;
    }
    work->pool->barrier();
  }
}

void check_jobs(uint32_t threads, uint32_t jobs, uint32_t pause_every) {
  ingot::cpu::Pool pool;
  require(pool.start(threads) == 0, "workers start");
  Work work;
  work.pool = &pool;
  std::vector<uint32_t> expected = work.values;
  for (uint32_t n = 0; n < jobs; ++n) {
    pool.run(&job, &work);
    for (uint32_t p = 1; p <= kPhases; ++p) {
      const uint32_t* before = &expected[(p - 1) * kItems];
      for (uint32_t i = 0; i < kItems; ++i)
        expected[p * kItems + i] += before[i] + before[(i + 1) % kItems] + 1;
    }
    if (pause_every != 0 && n % pause_every == 0) ::usleep(300);  // long enough for workers to park
  }
  require(expected == work.values, "every item of every phase is computed exactly once");
}

double process_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void check_idle() {
  ingot::cpu::Pool pool;
  require(pool.start(4) == 0, "workers start");
  Work work;
  work.pool = &pool;
  pool.run(&job, &work);
  ::usleep(50000);  // workers spin for a moment, then park
  const double before = process_seconds();
  ::usleep(300000);
  require(process_seconds() - before < 0.03, "an idle pool uses no processor time");
}

}  // namespace

int main() {
  for (const uint32_t threads : {1u, 2u, 3u, 8u}) {
    check_jobs(threads, 200, 0);
    check_jobs(threads, 60, 3);
  }
  for (uint32_t i = 0; i < 50; ++i) check_jobs(3, i % 2, 0);  // started and stopped with and without work
  check_idle();
  std::puts("ok");
}
