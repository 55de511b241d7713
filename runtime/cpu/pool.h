// A fixed team of workers for one engine. The caller is worker 0; the others are started once, spin briefly
// for work and then park in the kernel, so that an idle engine uses no processor time. Inside a job, `claim`
// hands out items and `barrier` waits for all workers; which worker computes an item never changes a result
// (INV-06). Nothing here allocates after `start`.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace ingot::cpu {

inline constexpr uint32_t kThreadsMax = 256;

// A counter that threads wait on: first by reading it again and again, then parked in the kernel.
class alignas(64) Signal {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  void set(uint32_t value);
  // Returns when the value is no longer `old`; reads it `spins` times before parking.
  void wait_changed(uint32_t old, uint32_t spins);

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> parked_{0};
};

class Pool {
 public:
  using Job = void (*)(void* context);

  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { stop(); }

  // Starts threads - 1 workers; 0, or an errno value and no worker runs.
  int start(uint32_t threads);
  void stop();
  uint32_t threads() const { return threads_; }

  // Runs `job` once on every worker at the same time and returns when all have finished.
  void run(Job job, void* context);

  // Inside a job: the first of `chunk` items that nobody else takes since the last barrier.
  uint32_t claim(uint32_t chunk) { return next_item_.fetch_add(chunk, std::memory_order_relaxed); }
  // Inside a job: returns when every worker has called it. What was written before is seen after.
  void barrier();

 private:
  static void* worker_main(void* pool);
  void work();

  uint32_t threads_ = 0;  // workers and the caller
  uint32_t spins_ = 0;
  bool stopping_ = false;  // these four are written before epoch_ changes and read after
  Job job_ = nullptr;
  void* context_ = nullptr;
  uint32_t started_ = 0;
  Signal epoch_;       // changes when there is a job, or when it is time to stop
  Signal generation_;  // changes when a barrier opens
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> next_item_{0};
  pthread_t handles_[kThreadsMax - 1];
};

// Processors that this process may run on, at least 1.
uint32_t processors();

}  // namespace ingot::cpu
