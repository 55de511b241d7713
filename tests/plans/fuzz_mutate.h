// Damages plans for the fuzzer as a mutator that knows the format: fields, records, sections and bytes; then
// mostly repairs sizes and hashes, because a plan with a wrong hash never reaches the deep checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot::test {

// xorshift64*: small, seeded, the same everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  // In 0..count - 1; count is not 0.
  uint64_t below(uint64_t count) { return (next() >> 11) % count; }
  bool one_in(uint64_t count) { return below(count) == 0; }

 private:
  uint64_t state_;
};

// Makes file_bytes and all hashes right, as far as the section table lets it. Needs a header page.
void repair(std::span<std::byte> plan);

// Damages the plan in the first `size` bytes of `buffer` (8-byte aligned); its new size, at most
// buffer.size(). `mutate_bytes` changes a range in place.
size_t mutate(std::span<std::byte> buffer, size_t size, Dice& dice,
              void (*mutate_bytes)(std::span<std::byte>));

}  // namespace ingot::test
