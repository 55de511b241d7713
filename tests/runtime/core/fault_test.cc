// Fails the n-th call of every system call that open, create and seal make, for every n: the call reports a
// documented code, and no mapping, descriptor or thread stays behind. It replaces the libc functions; the
// runtime has no hooks.
//   fault_test PLAN
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ingot.h"

namespace {

enum Call { kMmap, kPread, kMprotect, kThread, kLock, kCalls };
constexpr const char* kNames[kCalls] = {"mmap", "pread", "mprotect", "pthread_create", "mlock"};

Call failing = kCalls;
uint32_t failing_at = 0;  // 1: the first call
uint32_t seen = 0;
bool fired = false;
int64_t mapped = 0;  // bytes mapped less bytes unmapped, by the runtime's own calls

bool fails(Call call) {
  if (call != failing || ++seen != failing_at) return false;
  fired = true;
  return true;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fault_test: %s call %u: %s\n", failing < kCalls ? kNames[failing] : "no", failing_at,
               what);
  std::exit(1);
}

uint64_t entries(const char* path) {
  DIR* folder = ::opendir(path);
  require(folder != nullptr, path);
  uint64_t count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace

extern "C" {

void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (fails(kMmap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  const long result = ::syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
  if (result != -1 && (flags & MAP_FIXED) == 0) mapped += static_cast<int64_t>((bytes + 4095) / 4096 * 4096);
  return reinterpret_cast<void*>(result);
}
int munmap(void* address, size_t bytes) noexcept {
  mapped -= static_cast<int64_t>((bytes + 4095) / 4096 * 4096);
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}
int mprotect(void* address, size_t bytes, int protection) noexcept {
  if (fails(kMprotect)) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mprotect, address, bytes, protection));
}
ssize_t pread(int file, void* target, size_t bytes, off_t offset) {
  if (fails(kPread)) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, file, target, bytes, offset);
}
int mlock(const void*, size_t) noexcept {
  if (!fails(kLock)) return 0;  // limits on locked memory differ between machines
  errno = ENOMEM;
  return -1;
}
int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                          void* argument) {
  if (fails(kThread)) return EAGAIN;
  return __real_pthread_create(thread, attributes, start, argument);
}
}

namespace {

ingot_code expected(Call call) {
  switch (call) {
    case kThread:
      return INGOT_ERROR_THREADS;
    case kLock:
      return INGOT_ERROR_MEMORY;
    default:
      return INGOT_OK;  // by where it struck: FILE at open and when weights are read, MEMORY at create
  }
}

// Opens, creates, seals and closes; the code of the first failure.
ingot_code attempt(const char* path) {
  ingot_error error;
  ingot_plan* plan = nullptr;
  ingot_engine* engine = nullptr;
  ingot_code code = ingot_plan_open(path, &plan, &error);
  require((code == INGOT_OK) == (plan != nullptr), "a failed open gives no plan");
  if (code == INGOT_OK) {
    ingot_options options = {};
    options.threads = 4;
    options.lock_memory = 1;
    code = ingot_create(plan, &options, &engine, &error);
    require((code == INGOT_OK) == (engine != nullptr), "a failed create gives no engine");
    if (code == INGOT_OK) code = ingot_seal(engine, &error);
  }
  if (code != INGOT_OK)
    require(error.code == code && error.text[0] != '\0', "an error has a code and a text");
  ingot_close(engine);
  ingot_plan_close(plan);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 2, "usage: fault_test PLAN");
  require(attempt(argv[1]) == INGOT_OK, "without a fault all is well");
  const uint64_t descriptors = entries("/proc/self/fd");
  const uint64_t threads = entries("/proc/self/task");
  require(mapped == 0, "without a fault nothing stays mapped");
  uint32_t faults = 0;
  for (uint32_t call = 0; call < kCalls; ++call) {
    failing = static_cast<Call>(call);
    for (failing_at = 1;; ++failing_at) {
      seen = 0;
      fired = false;
      const ingot_code code = attempt(argv[1]);
      require(mapped == 0, "nothing stays mapped");
      require(entries("/proc/self/fd") == descriptors, "no descriptor stays open");
      require(entries("/proc/self/task") == threads, "no thread stays");
      if (!fired) {
        require(code == INGOT_OK, "all is well again");
        break;
      }
      ++faults;
      require(code == INGOT_ERROR_FILE || code == INGOT_ERROR_MEMORY || code == INGOT_ERROR_THREADS,
              "a documented code");
      require(expected(failing) == INGOT_OK || expected(failing) == code, "the code of this fault");
    }
    require(failing_at > 1, "the fault was injected at least once");
  }
  std::printf("%u faults\n", faults);
}
