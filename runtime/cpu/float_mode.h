// Rounding to nearest with denormals kept, whatever the embedding program or its libraries have set
// (runtime/README.md, rounding rules). The previous mode comes back when the scope ends.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ingot::cpu {

class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }  // all exceptions masked, no FTZ, no DAZ
  ~FloatMode() { _mm_setcsr(before_); }
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" ::"r"(before_)); }
#else
  FloatMode() : before_(0) {}
  ~FloatMode() { static_cast<void>(before_); }
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__aarch64__)
  uint64_t before_;
#else
  uint32_t before_;
#endif
};

}  // namespace ingot::cpu
