#include "tables.h"

#include "error.h"

namespace ingot::core {
namespace {

Place find(const PlanView& plan, const Regions& regions, const char* name) {
  const uint32_t index = plan.find(name);
  INGOT_ASSERT(index != plan::kNoneIndex, "tables", "a verified plan has every table");
  return regions.place(plan.tensors[index]);
}

}  // namespace

Tables find_tables(const PlanView& plan, const Regions& regions) {
  const auto place = [&](const char* name) { return find(plan, regions, name); };
  return {
      .engine = place("engine"),
      .granule_links = place("granule_links"),
      .request_tokens = place("request_tokens"),
      .token_counts = place("token_counts"),
      .granule_table = place("granule_table"),
      .sampling = place("sampling"),
      .events = place("events"),
      .request = place("request"),
      .row_tokens = place("row_tokens").at<uint32_t>(),
      .row_positions = place("row_positions").at<uint32_t>(),
      .row_leases = place("row_leases").at<uint32_t>(),
      .head_rows = place("head_rows").at<uint32_t>(),
      .head_requests = place("head_requests").at<uint32_t>(),
      .head_positions = place("head_positions").at<uint32_t>(),
      .logits = place("logits").at<float>(),
      .out_tokens = place("out_tokens").at<uint32_t>(),
      .top_tokens = place("top_tokens").at<uint32_t>(),
      .top_logprobs = place("top_logprobs").at<float>(),
  };
}

}  // namespace ingot::core
