// The KV pool: granules of 128 tokens on a free list inside STATE. A lease takes all granules a request can
// ever need at admission and returns them at its end; nothing grows, moves or is evicted (INV-04).
#pragma once

#include <cstdint>

#include "regions.h"

namespace ingot::core {

class GranulePool {
 public:
  // `links` is the tensor granule_links; puts all granules on the free list, granule 0 first.
  void reset(Place links, uint32_t granules);

  uint32_t free_count() const { return free_count_; }
  uint32_t count() const { return count_; }

  // Granules that hold this many tokens.
  static uint32_t granules_for(uint64_t tokens) {
    return static_cast<uint32_t>((tokens + plan::kGranuleTokens - 1) / plan::kGranuleTokens);
  }

  // Moves `granules` granules into table[0..granules); the caller has seen that they are free.
  void take(uint32_t* table, uint32_t granules);
  // Returns them; a granule that no lease holds aborts.
  void give(const uint32_t* table, uint32_t granules);

 private:
  struct Link {
    uint32_t references;  // leases that hold it: 0 or 1
    uint32_t next;        // next free granule when it is free
    uint32_t spare[2];
  };
  Link& link(uint32_t granule) const { return *links_.at<Link>(granule); }

  Place links_;
  uint32_t count_ = 0;
  uint32_t free_count_ = 0;
  uint32_t free_first_ = plan::kNoneIndex;
};

}  // namespace ingot::core
