// Requests in flight and the step that advances them. A step takes one row of every decoding request, then
// prompt rows of prefilling requests first come first served, up to step_rows; runs the smallest body program
// that holds them; and for rows that end their request's known tokens runs head programs, samples, and hands
// out events. All state lies in STATE.
#pragma once

#include <cstdint>
#include <span>

#include "../cpu/executor.h"
#include "ingot.h"
#include "lease.h"
#include "request.h"
#include "tables.h"

namespace ingot::core {

struct Counters {
  uint64_t steps = 0, rows = 0, tokens_generated = 0, requests_finished = 0;
};

class Stepper {
 public:
  // All slots and granules free. The arguments outlive the stepper.
  void reset(const PlanView& plan, const Tables& tables, cpu::Executor& executor, uint32_t requests,
             uint32_t granules, uint32_t step_rows);

  uint32_t slots() const { return slots_; }
  uint32_t free_slots() const { return free_.count(); }
  uint32_t running() const { return prefill_.count() + decode_.count(); }
  const GranulePool& granules() const { return granules_; }
  const Counters& counters() const { return counters_; }
  void set_counters(const Counters& counters) { counters_ = counters; }

  // Starts a request that was checked and fits: a slot and its granules are free.
  ingot_handle admit(std::span<const uint32_t> prompt, const plan::SamplingRecord& sampling);
  // Rows computed; 0 when no request can advance.
  uint32_t step();

  // The slot of a live request, kNoneIndex when the handle names none.
  uint32_t find(ingot_handle handle) const;
  uint32_t poll(uint32_t slot, std::span<plan::EventRecord> events);
  void cancel(uint32_t slot);

  // Runs `tokens` as a request of its own, `chunk` rows at a time, and writes the logits after each token
  // from `first` on to logits (tokens - first, V); null: the last head batch is left in the table logits. A
  // slot and granules for all tokens are free.
  void score(std::span<const uint32_t> tokens, uint32_t chunk, size_t first, float* logits);

 private:
  Request& request(uint32_t slot) const { return *tables_->request.at<Request>(slot); }
  uint32_t take_slot(uint32_t tokens);
  void release_lease(uint32_t slot);
  void release_slot(uint32_t slot);
  void add_row(uint32_t slot, uint32_t position);
  uint32_t gather_rows();
  void run_body(uint32_t rows);
  void run_head(uint32_t rows);
  void finish_rows(uint32_t rows);
  void sample_rows(uint32_t rows);
  void append(uint32_t slot, uint32_t head_row);
  void push_event(uint32_t slot, uint32_t head_row, plan::Finish finish);
  void end(uint32_t slot, plan::Finish finish);

  const PlanView* plan_ = nullptr;
  const Tables* tables_ = nullptr;
  cpu::Executor* executor_ = nullptr;
  uint32_t slots_ = 0;
  uint32_t step_rows_ = 0;
  uint32_t rows_ = 0;  // rows of the step being gathered
  GranulePool granules_;
  RequestList free_, prefill_, decode_;
  Counters counters_;
};

}  // namespace ingot::core
