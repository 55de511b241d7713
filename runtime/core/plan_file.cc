#include "plan_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "memory.h"

namespace ingot::core {
namespace {

// Tables and texts up to this size are copied; more is left in the mapped file (their limits add up to less).
constexpr uint64_t kCopiedBytesMax = uint64_t{1} << 30;

ingot_code file_error(ingot_error* error, const char* action, const char* path, int number) {
  return fail(error, INGOT_ERROR_FILE, 0, static_cast<uint64_t>(number),
              "cannot %s the plan %.120s: %s (error %d)", action, path, errno_text(number), number);
}

// Reads exactly target.size() bytes at `offset`; 0, or an errno value (EIO when the file ends before).
int read_exactly(int file, uint64_t offset, std::span<std::byte> target) {
  uint64_t done = 0;
  while (done < target.size()) {
    const uint64_t left = target.size() - done;
    const size_t count = left < (size_t{1} << 30) ? left : size_t{1} << 30;
    const ssize_t got = ::pread(file, target.data() + done, count, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;
    done += static_cast<uint64_t>(got);
  }
  return 0;
}

// Where the large sections begin according to a header that nobody has verified: at most `bytes`, a multiple
// of a page. Any answer is safe; a wrong one only decides what is copied and what is mapped.
uint64_t copied_bytes(std::span<const std::byte> header, uint64_t bytes) {
  plan::Header fields;
  std::memcpy(&fields, header.data(), sizeof fields);
  uint64_t least = bytes;
  const uint32_t count =
      fields.section_count < plan::kLimitSections ? fields.section_count : plan::kLimitSections;
  for (uint32_t i = 0; i < count; ++i) {
    plan::SectionRecord section;
    std::memcpy(&section, header.data() + plan::kSectionTableOffset + i * sizeof section, sizeof section);
    const bool large = section.kind == static_cast<uint32_t>(plan::Section::kScales) ||
                       section.kind == static_cast<uint32_t>(plan::Section::kWeights);
    if (large && section.offset < least) least = section.offset;
  }
  if (least > kCopiedBytesMax) least = kCopiedBytesMax;
  return least / page_bytes() * page_bytes();
}

struct Mapping {
  std::byte* base = nullptr;  // one page for the control block, then the file
  uint64_t bytes = 0;
  uint64_t copied = 0;  // leading bytes of the file that are a copy
};

// Maps [control block page][file] and copies the head of the file; 0, or an errno value and nothing is
// mapped.
int map_file(int file, uint64_t bytes, Mapping* mapping) {
  const uint64_t page = page_bytes();
  alignas(64) std::byte header[plan::kPageBytes] = {};
  const uint64_t header_bytes = bytes < sizeof header ? bytes : sizeof header;
  if (const int number = read_exactly(file, 0, std::span(header).first(header_bytes)); number != 0)
    return number;
  mapping->copied = copied_bytes(header, bytes);
  if (mapping->copied < header_bytes) mapping->copied = bytes < page ? bytes : page;
  mapping->bytes = page + (bytes + page - 1) / page * page;
  void* mapped = ::mmap(nullptr, mapping->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return errno;
  mapping->base = static_cast<std::byte*>(mapped);
  std::byte* content = mapping->base + page;
  int number = read_exactly(file, 0, {content, mapping->copied});
  if (number == 0 && mapping->copied < bytes) {
    void* rest = ::mmap(content + mapping->copied, bytes - mapping->copied, PROT_READ,
                        MAP_PRIVATE | MAP_FIXED, file, static_cast<off_t>(mapping->copied));
    if (rest == MAP_FAILED) number = errno;
  }
  if (number == 0 && ::mprotect(content, mapping->bytes - page, PROT_READ) != 0) number = errno;
  if (number != 0) ::munmap(mapping->base, mapping->bytes);
  return number;
}

// Opens a regular, non-empty file; the descriptor, or -1 with *error filled.
int open_regular(const char* path, uint64_t* bytes, ingot_error* error) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    file_error(error, "open", path, errno);
    return -1;
  }
  struct stat status;
  if (::fstat(file, &status) != 0) {
    file_error(error, "examine", path, errno);
  } else if (!S_ISREG(status.st_mode)) {
    const int number = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    fail(error, INGOT_ERROR_FILE, 0, static_cast<uint64_t>(number),
         "%.160s is %s: give the path of a plan file", path,
         S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  } else if (status.st_size == 0) {
    fail(error, INGOT_ERROR_FILE, plan::kPageBytes, 0, "%.160s is empty: a plan has at least %u bytes", path,
         plan::kPageBytes);
  } else {
    *bytes = static_cast<uint64_t>(status.st_size);
    return file;
  }
  ::close(file);
  return -1;
}

}  // namespace

ingot_code open_plan(const char* path, ingot_plan** plan, ingot_error* error) {
  *plan = nullptr;
  ingot_error local;
  if (error == nullptr) error = &local;
  uint64_t bytes = 0;
  const int file = open_regular(path, &bytes, error);
  if (file < 0) return error->code;
  Mapping mapping;
  if (const int number = map_file(file, bytes, &mapping); number != 0) {
    ::close(file);
    return file_error(error, "read", path, number);
  }
  PlanView view;
  uint64_t index = 0;
  std::byte* content = mapping.base + page_bytes();
  const plan::Reason reason = verify({content, bytes}, &index, &view);
  if (reason != plan::Reason::kOk) {
    ::munmap(mapping.base, mapping.bytes);
    ::close(file);
    fail(error, INGOT_ERROR_PLAN, index, static_cast<uint64_t>(reason), "%s (reason %u, index %llu)",
         reason_text(reason), static_cast<unsigned>(reason), static_cast<unsigned long long>(index));
    error->reason = static_cast<uint32_t>(reason);
    return INGOT_ERROR_PLAN;
  }
  // Verifying touched every page of the file; from here on weights are read through the descriptor.
  if (mapping.copied < bytes) ::madvise(content + mapping.copied, bytes - mapping.copied, MADV_DONTNEED);
  *plan = new (mapping.base) ingot_plan{1, file, mapping.base, mapping.bytes, view};
  return succeed(error);
}

void hold_plan(const ingot_plan& plan) { plan.holders.fetch_add(1, std::memory_order_relaxed); }

void drop_plan(const ingot_plan& plan) {
  if (plan.holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  ::close(plan.file);
  ::munmap(plan.mapping, plan.mapping_bytes);
}

ingot_code read_section(const ingot_plan& plan, plan::Section kind, std::span<std::byte> target,
                        ingot_error* error) {
  const std::span<const std::byte> section = plan.view.section(kind);
  INGOT_ASSERT(section.size() == target.size(), "plan", "a region has the size of the section that fills it");
  const auto offset = static_cast<uint64_t>(section.data() - plan.view.file.data());
  const int number = read_exactly(plan.file, offset, target);
  if (number == 0) return INGOT_OK;
  return fail(error, INGOT_ERROR_FILE, target.size(), static_cast<uint64_t>(number),
              "cannot read %llu bytes of weights from the plan: %s (error %d)",
              static_cast<unsigned long long>(target.size()), errno_text(number), number);
}

}  // namespace ingot::core
