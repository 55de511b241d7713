#include "lease.h"

#include "error.h"

namespace ingot::core {

void GranulePool::reset(Place links, uint32_t granules) {
  links_ = links;
  count_ = granules;
  free_count_ = granules;
  free_first_ = granules == 0 ? plan::kNoneIndex : 0;
  for (uint32_t i = 0; i < granules; ++i) link(i) = {0, i + 1 < granules ? i + 1 : plan::kNoneIndex, {0, 0}};
}

void GranulePool::take(uint32_t* table, uint32_t granules) {
  INGOT_ASSERT(granules <= free_count_, "INV-04", "a lease takes only free granules");
  for (uint32_t i = 0; i < granules; ++i) {
    const uint32_t granule = free_first_;
    INGOT_ASSERT(granule < count_, "INV-04", "the free list is as long as its count");
    Link& taken = link(granule);
    INGOT_ASSERT(taken.references == 0, "INV-04", "a free granule belongs to no lease");
    taken.references = 1;
    free_first_ = taken.next;
    taken.next = plan::kNoneIndex;
    table[i] = granule;
  }
  free_count_ -= granules;
}

void GranulePool::give(const uint32_t* table, uint32_t granules) {
  INGOT_ASSERT(granules <= count_ - free_count_, "INV-04", "a lease returns no more than was taken");
  for (uint32_t i = granules; i-- > 0;) {  // backwards: the next lease takes them in the same order
    const uint32_t granule = table[i];
    INGOT_ASSERT(granule < count_, "INV-04", "a granule table names granules of the pool");
    Link& given = link(granule);
    INGOT_ASSERT(given.references == 1, "INV-04", "a leased granule belongs to exactly one lease");
    given = {0, free_first_, {0, 0}};
    free_first_ = granule;
  }
  free_count_ += granules;
}

}  // namespace ingot::core
