// Addresses of the tables that the runtime's own code reads and writes: STATE_TENSORS of plans/layout.py, by
// name.
#pragma once

#include "plan.h"
#include "regions.h"

namespace ingot::core {

struct Tables {
  Place engine;              // (ENGINE_BYTES) u8
  Place granule_links;       // per granule (4) u32
  Place request_tokens;      // per request (context) u32
  Place token_counts;        // per request (V) u16
  Place granule_table;       // per request (granules of a context) u32
  Place sampling;            // per request SamplingRecord
  Place events;              // per request (EVENT_RING_ENTRIES) EventRecord
  Place request;             // per request Request
  uint32_t* row_tokens;      // (rows_max)
  uint32_t* row_positions;   // (rows_max)
  uint32_t* row_leases;      // (rows_max) request slots
  uint32_t* head_rows;       // (head_rows_max) rows of hidden
  uint32_t* head_requests;   // (head_rows_max) request slots, kNoneIndex: do not sample
  uint32_t* head_positions;  // (head_rows_max)
  float* logits;             // (head_rows_max, V)
  uint32_t* out_tokens;      // (head_rows_max)
  uint32_t* top_tokens;      // (head_rows_max, 1 + TOP_LOGPROBS_MAX)
  float* top_logprobs;       // (head_rows_max, 1 + TOP_LOGPROBS_MAX)
};

Tables find_tables(const PlanView& plan, const Regions& regions);

}  // namespace ingot::core
