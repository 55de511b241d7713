#include "regions.h"

#include "error.h"

namespace ingot::core {
namespace {

uint64_t page_up(uint64_t bytes) {
  return (bytes + plan::kPageBytes - 1) / plan::kPageBytes * plan::kPageBytes;
}

}  // namespace

void Regions::set(const PlanView& plan, std::byte* const bases[kRegionCount], uint64_t granules,
                  uint64_t requests) {
  for (uint32_t i = 0; i < kRegionCount; ++i) {
    const plan::RegionRecord& region = plan.regions[i];
    std::byte* granule_part = bases[i] + page_up(region.bytes_fixed);
    std::byte* request_part = granule_part + page_up(region.bytes_per_granule * granules);
    spans_[i] = {{bases[i], granule_part, request_part},
                 {0, region.bytes_per_granule, region.bytes_per_request}};
    const uint64_t end =
        static_cast<uint64_t>(request_part - bases[i]) + page_up(region.bytes_per_request * requests);
    INGOT_ASSERT(end == region_bytes(region, granules, requests), "INV-02",
                 "a region's parts add up to its bytes");
  }
}

Place Regions::place(const plan::TensorRecord& tensor) const {
  const Span& span = spans_[tensor.region - 1];
  return {span.part[tensor.unit] + tensor.offset, span.stride[tensor.unit]};
}

}  // namespace ingot::core
