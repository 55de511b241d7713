#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
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

// The number in a file that holds one, UINT64_MAX when there is none ("max").
uint64_t read_number(const char* path) {
  char text[64];
  if (read_small(path, text) == 0 || text[0] < '0' || text[0] > '9') return UINT64_MAX;
  return std::strtoull(text, nullptr, 10);
}

uint64_t machine_available() {
  char text[2048];
  if (read_small("/proc/meminfo", text) == 0) return UINT64_MAX;
  const char* line = std::strstr(text, "MemAvailable:");
  if (line == nullptr) return UINT64_MAX;
  return std::strtoull(line + sizeof "MemAvailable:" - 1, nullptr, 10) << 10;
}

uint64_t difference(uint64_t limit, uint64_t used) {
  if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
  return limit > used ? limit - used : 0;
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
  const uint64_t machine = machine_available();
  const uint64_t group =
      difference(read_number("/sys/fs/cgroup/memory.max"), read_number("/sys/fs/cgroup/memory.current"));
  const uint64_t group_v1 = difference(read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                                       read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  const uint64_t least = machine < group ? machine : group;
  return least < group_v1 ? least : group_v1;
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
