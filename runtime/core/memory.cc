#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace ingot::core {
namespace {

// Reads a small system file into `text`; the number of bytes, 0 when it cannot be read. Allocates nothing.
size_t read_small(const char* path, std::span<char> text) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  size_t length = 0;
  while (length + 1 < text.size()) {
    const ssize_t got = ::read(file, text.data() + length, text.size() - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  ::close(file);
  text[length] = '\0';
  return length;
}

// The number behind a name at the start of a line ("MemAvailable:", "inactive_file "); `missing` when it is
// not there.
uint64_t number_after(const char* text, const char* name, uint64_t missing) {
  const size_t length = std::strlen(name);
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (std::strncmp(line, name, length) == 0) return std::strtoull(line + length, nullptr, 10);
  }
  return missing;
}

// One control group's file, its whole content a number; `missing` when it cannot be read or says "max".
uint64_t group_number(const char* folder, const char* file, uint64_t missing) {
  char path[600];
  char text[64];
  std::snprintf(path, sizeof path, "%s/%s", folder, file);
  if (read_small(path, text) == 0 || text[0] < '0' || text[0] > '9') return missing;
  return std::strtoull(text, nullptr, 10);
}

// What a control group can still take: its limit less its use, of which file pages are given back when asked
// for (reading a plan fills them).
uint64_t group_available(const char* folder) {
  const uint64_t limit = group_number(folder, "memory.max", UINT64_MAX);
  if (limit == UINT64_MAX) return UINT64_MAX;
  uint64_t used = group_number(folder, "memory.current", 0);
  char path[600];
  char text[8192];
  std::snprintf(path, sizeof path, "%s/memory.stat", folder);
  if (read_small(path, text) != 0) {
    const uint64_t files = number_after(text, "inactive_file ", 0) + number_after(text, "active_file ", 0);
    used -= files < used ? files : used;
  }
  return limit > used ? limit - used : 0;
}

// The least that this process's control group and those above it can take (version 2; version 1 says nothing
// here).
uint64_t groups_available() {
  char text[512];
  if (read_small("/proc/self/cgroup", text) == 0) return UINT64_MAX;
  const char* own = std::strstr(text, "0::/");
  if (own == nullptr) return UINT64_MAX;
  char folder[560];
  std::snprintf(folder, sizeof folder, "/sys/fs/cgroup%.*s", static_cast<int>(std::strcspn(own + 3, "\n")),
                own + 3);
  uint64_t least = UINT64_MAX;
  for (;;) {
    const uint64_t here = group_available(folder);
    if (here < least) least = here;
    if (std::strcmp(folder, "/sys/fs/cgroup") == 0) return least;
    *std::strrchr(folder, '/') = '\0';
  }
}

void touch(std::byte* address, uint64_t bytes) {
  if (::madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return;
  const uint64_t step = page_bytes();
  for (uint64_t at = 0; at < bytes; at += step)
    *reinterpret_cast<volatile std::byte*>(address + at) = std::byte{0};
}

}  // namespace

uint64_t page_bytes() { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

uint64_t available_bytes() {
  char text[2048];
  uint64_t machine = UINT64_MAX;
  if (read_small("/proc/meminfo", text) != 0) {
    const uint64_t kib = number_after(text, "MemAvailable:", UINT64_MAX);
    if (kib != UINT64_MAX) machine = kib << 10;
  }
  const uint64_t groups = groups_available();
  return machine < groups ? machine : groups;
}

void Memory::take(Memory& other) {
  release();
  std::memcpy(reservations_, other.reservations_, sizeof reservations_);
  count_ = other.count_;
  sealed_ = other.sealed_;
  bytes_ = other.bytes_;
  refused_after_seal_ = other.refused_after_seal_;
  other.count_ = 0;
  other.bytes_ = 0;
}

std::byte* Memory::reserve(uint64_t bytes, uint64_t alignment, bool huge) {
  if (sealed_) ++refused_after_seal_;
  INGOT_ASSERT(!sealed_, "INV-01", "an allocation was asked for after seal");
  INGOT_ASSERT(count_ < kReservationsMax, "memory", "more reservations than a plan has regions");
  INGOT_ASSERT(bytes > 0 && bytes <= UINT64_MAX / 4, "memory", "a reservation has no size");
  const uint64_t page = page_bytes();
  const uint64_t size = (bytes + page - 1) / page * page;
  // Over-map by the alignment and give the ends back: mmap promises only page alignment.
  const uint64_t slack = alignment > page ? alignment : 0;
  void* mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  if (slack != 0) {
    const uint64_t misfit = reinterpret_cast<uintptr_t>(begin) % alignment;
    const uint64_t head = misfit == 0 ? 0 : alignment - misfit;
    if (head != 0) ::munmap(begin, head);
    if (slack - head != 0) ::munmap(begin + head + size, slack - head);
    begin += head;
  }
  if (huge) ::madvise(begin, size, MADV_HUGEPAGE);
  touch(begin, size);
  reservations_[count_++] = {begin, size};
  bytes_ += size;
  return begin;
}

bool Memory::lock() {
  for (uint32_t i = 0; i < count_; ++i) {
    if (::mlock(reservations_[i].address, reservations_[i].bytes) != 0) return false;
  }
  return true;
}

void Memory::release() {
  for (uint32_t i = 0; i < count_; ++i) ::munmap(reservations_[i].address, reservations_[i].bytes);
  count_ = 0;
  bytes_ = 0;
  sealed_ = false;
}

}  // namespace ingot::core
