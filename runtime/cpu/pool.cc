#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>

namespace ingot::cpu {
namespace {

// Reads of a signal before parking: tens of microseconds, longer than a phase's imbalance and shorter than a
// time slice.
constexpr uint32_t kSpins = 2000;
// With more workers than processors a spinning worker keeps another one from running.
constexpr uint32_t kSpinsOversubscribed = 20;
// Kernels keep their data in regions; the sampler's histograms are the largest locals (24 KiB).
constexpr size_t kStackBytes = size_t{512} << 10;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                std::atomic<uint32_t>::is_always_lock_free);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

// Binds a thread to the index-th processor that this process may use; a system that refuses is left as it is.
void pin(pthread_t thread, uint32_t index) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (uint32_t processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || index-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ::pthread_setaffinity_np(thread, sizeof one, &one);
    return;
  }
}

}  // namespace

uint32_t processors() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  const int count = CPU_COUNT(&allowed);
  return count < 1 ? 1 : static_cast<uint32_t>(count);
}

// `set` stores the value and then looks for parked threads; `wait_changed` announces itself as parked and
// then looks at the value. Both orders are sequentially consistent, so one of the two sees the other and no
// wake-up is lost.
void Signal::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) != 0) futex(&value_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

void Signal::wait_changed(uint32_t old, uint32_t spins) {
  for (uint32_t i = 0; i < spins; ++i) {
    if (value_.load(std::memory_order_acquire) != old) return;
    relax();
  }
  parked_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == old) futex(&value_, FUTEX_WAIT_PRIVATE, old);
  parked_.fetch_sub(1, std::memory_order_seq_cst);
}

int Pool::start(uint32_t threads) {
  threads_ = threads;
  const uint32_t available = processors();
  spins_ = threads <= available ? kSpins : kSpinsOversubscribed;
  pthread_attr_t attributes;
  if (const int number = ::pthread_attr_init(&attributes); number != 0) return number;
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all, before;  // signals are the embedding program's: workers take none
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int number = 0;
  while (number == 0 && started_ + 1 < threads) {
    number = ::pthread_create(&handles_[started_], &attributes, &Pool::worker_main, this);
    if (number != 0) break;
    char name[16];
    std::snprintf(name, sizeof name, "ingot-%u", started_ + 1);
    ::pthread_setname_np(handles_[started_], name);
    ++started_;
    if (threads <= available) pin(handles_[started_ - 1], started_);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (number != 0) stop();
  return number;
}

void Pool::stop() {
  if (started_ == 0) return;
  stopping_ = true;
  epoch_.set(epoch_.value() + 1);
  for (uint32_t i = 0; i < started_; ++i) ::pthread_join(handles_[i], nullptr);
  started_ = 0;
  threads_ = 0;
  stopping_ = false;
}

void Pool::run(Job job, void* context) {
  job_ = job;
  context_ = context;
  if (threads_ == 1) {
    job(context);
    return;
  }
  epoch_.set(epoch_.value() + 1);
  job(context);
  barrier();
}

void Pool::barrier() {
  if (threads_ == 1) {
    next_item_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t generation = generation_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    next_item_.store(0, std::memory_order_relaxed);
    generation_.set(generation + 1);
    return;
  }
  generation_.wait_changed(generation, spins_);
}

void* Pool::worker_main(void* pool) {
  static_cast<Pool*>(pool)->work();
  return nullptr;
}

void Pool::work() {
  // A worker has finished job n before it looks for job n + 1, so the epoch it waits on is the number of jobs
  // it ran.
  for (uint32_t epoch = 0;; ++epoch) {
    epoch_.wait_changed(epoch, spins_);
    if (stopping_) return;
    job_(context_);
    barrier();
  }
}

}  // namespace ingot::cpu
