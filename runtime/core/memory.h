// The only place of the runtime that allocates (plan_file.cc maps the plan, before any engine). A Memory
// makes at most kReservationsMax reservations, all before it is sealed, and returns them all at once; after
// seal one more aborts (INV-01). Reserved bytes are zero and resident: every page was written before
// `reserve` returned, so that nothing faults or fails later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot::core {

inline constexpr uint32_t kReservationsMax = 8;

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(); }

  // Takes over what `other` holds; `other` is empty afterwards.
  void take(Memory& other);

  // Zeroed, resident memory aligned to `alignment` (a power of two, at least a page), or nullptr when the
  // system has none. With `huge` transparent huge pages are asked for. Aborts after seal.
  std::byte* reserve(uint64_t bytes, uint64_t alignment, bool huge);

  // Locks all reservations into memory; false with errno set when the system refuses.
  bool lock();
  void seal() { sealed_ = true; }
  bool sealed() const { return sealed_; }
  void release();

  uint64_t bytes() const { return bytes_; }
  uint64_t refused_after_seal() const { return refused_after_seal_; }

 private:
  struct Reservation {
    std::byte* address = nullptr;
    uint64_t bytes = 0;
  };
  Reservation reservations_[kReservationsMax];
  uint32_t count_ = 0;
  bool sealed_ = false;
  uint64_t bytes_ = 0;
  uint64_t refused_after_seal_ = 0;
};

// Bytes that this process can still be given: free memory of the machine and of its control group, whichever
// is less. UINT64_MAX when the system does not say.
uint64_t available_bytes();

uint64_t page_bytes();

}  // namespace ingot::core
