// Where the six regions lie and how a tensor record becomes an address. A region holds its FIXED part, then
// one stride per granule, then one stride per request slot, each part beginning on a page (runtime/README.md,
// Addresses).
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan.h"

namespace ingot::core {

// A tensor's address (of granule or request 0 for those units) and the bytes from one unit to the next.
struct Place {
  std::byte* data = nullptr;
  uint64_t stride = 0;  // 0 for FIXED

  template <typename T>
  T* at(uint64_t unit = 0) const {
    return reinterpret_cast<T*>(data + unit * stride);
  }
};

inline constexpr uint32_t kRegionCount = 6;

class Regions {
 public:
  // `bases[i]` is the address of region record i; counts as chosen at open.
  void set(const PlanView& plan, std::byte* const bases[kRegionCount], uint64_t granules, uint64_t requests);
  Place place(const plan::TensorRecord& tensor) const;

 private:
  struct Span {
    std::byte* part[3];  // by Unit
    uint64_t stride[3];
  };
  Span spans_[kRegionCount];
};

}  // namespace ingot::core
