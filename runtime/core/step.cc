#include "step.h"

#include <cstring>

#include "error.h"
#include "sampler.h"

namespace ingot::core {
namespace {

constexpr uint64_t kTop = 1 + plan::kTopLogprobsMax;

// The smallest program of a family that holds `rows`; programs are sorted by family, then rows.
const plan::ProgramRecord& smallest(const PlanView& plan, plan::Family family, uint32_t rows) {
  for (const plan::ProgramRecord& program : plan.programs) {
    if (program.family == static_cast<uint32_t>(family) && program.rows >= rows) return program;
  }
  abort_invariant("step", "a step has no more rows than the largest program", __FILE__, __LINE__);
}

bool stops(const plan::SamplingRecord& sampling, uint32_t token, uint32_t generated) {
  if (generated <= sampling.min_tokens)
    return false;  // `generated` includes this token; before, stops are masked
  for (uint32_t i = 0; i < sampling.eos_count; ++i) {
    if (sampling.eos_tokens[i] == token) return true;
  }
  for (uint32_t i = 0; i < sampling.stop_count; ++i) {
    if (sampling.stop_tokens[i] == token) return true;
  }
  return false;
}

}  // namespace

void Stepper::reset(const PlanView& plan, const Tables& tables, cpu::Executor& executor, uint32_t requests,
                    uint32_t granules, uint32_t step_rows) {
  plan_ = &plan;
  tables_ = &tables;
  executor_ = &executor;
  slots_ = requests;
  step_rows_ = step_rows;
  granules_.reset(tables.granule_links, granules);
  free_ = prefill_ = decode_ = RequestList(&tables.request);
  for (uint32_t slot = 0; slot < requests; ++slot) {
    request(slot) = Request{};
    request(slot).generation = 1;
    free_.push_back(slot);
  }
}

uint32_t Stepper::take_slot(uint32_t tokens) {
  const uint32_t slot = free_.first();
  INGOT_ASSERT(slot != plan::kNoneIndex, "step", "a request is admitted only when a slot is free");
  INGOT_ASSERT(tokens <= plan_->header->context, "INV-05", "a lease is at most the context");
  free_.remove(slot);
  Request& taken = request(slot);
  const uint32_t generation = taken.generation;
  taken = Request{};
  taken.generation = generation;
  taken.capacity = tokens;
  taken.granules = GranulePool::granules_for(tokens);
  granules_.take(tables_->granule_table.at<uint32_t>(slot), taken.granules);
  return slot;
}

void Stepper::release_lease(uint32_t slot) {
  Request& ended = request(slot);
  granules_.give(tables_->granule_table.at<uint32_t>(slot), ended.granules);
  ended.granules = 0;
}

void Stepper::release_slot(uint32_t slot) {
  Request& ended = request(slot);
  INGOT_ASSERT(ended.granules == 0, "INV-04", "a free slot holds no lease");
  ended.state = RequestState::kFree;
  ++ended.generation;
  if (ended.generation == 0) ended.generation = 1;  // so that no handle is 0
  free_.push_back(slot);
}

ingot_handle Stepper::admit(std::span<const uint32_t> prompt, const plan::SamplingRecord& sampling) {
  const auto prompt_count = static_cast<uint32_t>(prompt.size());
  const uint32_t slot = take_slot(prompt_count + sampling.max_tokens);
  Request& admitted = request(slot);
  admitted.state = RequestState::kPrefill;
  admitted.prompt_count = prompt_count;
  admitted.length = prompt_count;
  *tables_->sampling.at<plan::SamplingRecord>(slot) = sampling;
  std::memcpy(tables_->request_tokens.at<uint32_t>(slot), prompt.data(), prompt.size_bytes());
  auto* counts = tables_->token_counts.at<uint16_t>(slot);
  std::memset(counts, 0, uint64_t{plan_->header->vocabulary} * sizeof *counts);
  for (const uint32_t token : prompt) counts[token] = kCountPrompt;
  prefill_.push_back(slot);
  return uint64_t{admitted.generation} << 32 | slot;
}

uint32_t Stepper::find(ingot_handle handle) const {
  const auto slot = static_cast<uint32_t>(handle);
  if (slot >= slots_) return plan::kNoneIndex;
  const Request& named = request(slot);
  const bool live = named.state != RequestState::kFree && named.state != RequestState::kScore;
  return live && named.generation == handle >> 32 ? slot : plan::kNoneIndex;
}

void Stepper::add_row(uint32_t slot, uint32_t position) {
  const Request& owner = request(slot);
  INGOT_ASSERT(position < owner.length && owner.length <= owner.capacity, "INV-05",
               "a row lies inside its lease");
  INGOT_ASSERT(position / plan::kGranuleTokens < owner.granules, "INV-05", "a row's granule is leased");
  tables_->row_tokens[rows_] = tables_->request_tokens.at<uint32_t>(slot)[position];
  tables_->row_positions[rows_] = position;
  tables_->row_leases[rows_] = slot;
  ++rows_;
}

// Decode rows first: the list turns, so that with more requests than rows each has its turn. A request whose
// event ring is full sits out.
uint32_t Stepper::gather_rows() {
  rows_ = 0;
  for (uint32_t left = decode_.count(); left > 0 && rows_ < step_rows_; --left) {
    const uint32_t slot = decode_.rotate();
    if (request(slot).ring_count < plan::kEventRingEntries) add_row(slot, request(slot).written);
  }
  for (uint32_t slot = prefill_.first(); slot != plan::kNoneIndex && rows_ < step_rows_;
       slot = prefill_.next(slot)) {
    const Request& waiting = request(slot);
    for (uint32_t at = waiting.written; at < waiting.length && rows_ < step_rows_; ++at) add_row(slot, at);
  }
  return rows_;
}

void Stepper::run_body(uint32_t rows) { executor_->run(smallest(*plan_, plan::Family::kBody, rows), rows); }

void Stepper::run_head(uint32_t rows) { executor_->run(smallest(*plan_, plan::Family::kHead, rows), rows); }

uint32_t Stepper::step() {
  const uint32_t rows = gather_rows();
  if (rows == 0) return 0;
  run_body(rows);
  finish_rows(rows);
  ++counters_.steps;
  counters_.rows += rows;
  return rows;
}

// Moves write positions and samples where a row was its request's last known token.
void Stepper::finish_rows(uint32_t rows) {
  uint32_t heads = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t slot = tables_->row_leases[row];
    Request& owner = request(slot);
    owner.written = tables_->row_positions[row] + 1;
    if (owner.written != owner.length) continue;
    tables_->head_rows[heads] = row;
    tables_->head_requests[heads] = slot;
    tables_->head_positions[heads] = owner.length;
    if (++heads < plan_->header->head_rows_max) continue;
    sample_rows(heads);
    heads = 0;
  }
  if (heads != 0) sample_rows(heads);
}

void Stepper::sample_rows(uint32_t rows) {
  run_head(rows);
  for (uint32_t i = 0; i < rows; ++i) append(tables_->head_requests[i], i);
}

void Stepper::append(uint32_t slot, uint32_t head_row) {
  Request& owner = request(slot);
  const auto& sampling = *tables_->sampling.at<plan::SamplingRecord>(slot);
  const uint32_t token = tables_->out_tokens[head_row];
  INGOT_ASSERT(token < plan_->header->vocabulary, "step", "a sampled token is below the vocabulary");
  INGOT_ASSERT(owner.length < owner.capacity, "INV-05", "a lease holds every generated token");
  tables_->request_tokens.at<uint32_t>(slot)[owner.length] = token;
  uint16_t& count = tables_->token_counts.at<uint16_t>(slot)[token];
  if ((count & kCountGenerated) != kCountGenerated) ++count;
  ++owner.length;
  ++counters_.tokens_generated;
  const uint32_t generated = owner.length - owner.prompt_count;
  plan::Finish finish = plan::Finish::kNone;
  if (stops(sampling, token, generated)) {
    finish = plan::Finish::kStop;
  } else if (generated == sampling.max_tokens) {
    finish = plan::Finish::kLength;
  }
  push_event(slot, head_row, finish);
  if (finish != plan::Finish::kNone) {
    end(slot, finish);
  } else if (owner.state == RequestState::kPrefill) {
    prefill_.remove(slot);
    owner.state = RequestState::kDecode;
    decode_.push_back(slot);
  }
}

void Stepper::push_event(uint32_t slot, uint32_t head_row, plan::Finish finish) {
  Request& owner = request(slot);
  INGOT_ASSERT(owner.ring_count < plan::kEventRingEntries, "step", "a request with a full ring sits out");
  const auto& sampling = *tables_->sampling.at<plan::SamplingRecord>(slot);
  auto* ring = tables_->events.at<plan::EventRecord>(slot);
  plan::EventRecord& event = ring[(owner.ring_begin + owner.ring_count) % plan::kEventRingEntries];
  ++owner.ring_count;
  event = plan::EventRecord{};
  event.token = tables_->out_tokens[head_row];
  event.position = owner.length - 1;
  event.finish = static_cast<uint32_t>(finish);
  const uint32_t* tokens = tables_->top_tokens + head_row * kTop;
  const float* logprobs = tables_->top_logprobs + head_row * kTop;
  if (sampling.want_logprob != 0) event.logprob = logprobs[0];
  const uint32_t vocabulary = plan_->header->vocabulary;
  event.top_count = sampling.top_logprobs < vocabulary ? sampling.top_logprobs : vocabulary;
  for (uint32_t i = 0; i < event.top_count; ++i) {
    event.top_tokens[i] = tokens[1 + i];
    event.top_logprobs[i] = logprobs[1 + i];
  }
}

void Stepper::end(uint32_t slot, plan::Finish finish) {
  Request& ended = request(slot);
  (ended.state == RequestState::kPrefill ? prefill_ : decode_).remove(slot);
  ended.state = RequestState::kEnded;
  ended.finish = finish;
  release_lease(slot);
  ++counters_.requests_finished;
}

uint32_t Stepper::poll(uint32_t slot, std::span<plan::EventRecord> events) {
  Request& owner = request(slot);
  const auto* ring = tables_->events.at<plan::EventRecord>(slot);
  uint32_t count = 0;
  while (count < events.size() && owner.ring_count > 0) {
    events[count++] = ring[owner.ring_begin];
    owner.ring_begin = (owner.ring_begin + 1) % plan::kEventRingEntries;
    --owner.ring_count;
  }
  if (owner.state != RequestState::kEnded || owner.ring_count != 0) return count;
  if (owner.finish ==
      plan::Finish::kCancelled) {  // its event needs no place in the ring: it follows all others
    if (count == events.size()) return count;
    events[count] = plan::EventRecord{};
    events[count].position = owner.length;
    events[count++].finish = static_cast<uint32_t>(plan::Finish::kCancelled);
  }
  release_slot(slot);
  return count;
}

// Calls do not overlap steps, so this already is a step boundary.
void Stepper::cancel(uint32_t slot) {
  if (request(slot).state != RequestState::kEnded) end(slot, plan::Finish::kCancelled);
}

void Stepper::score(std::span<const uint32_t> tokens, uint32_t chunk, size_t first, float* logits) {
  const auto count = static_cast<uint32_t>(tokens.size());
  const uint32_t slot = take_slot(count);
  Request& scored = request(slot);
  scored.state = RequestState::kScore;
  scored.length = count;
  std::memcpy(tables_->request_tokens.at<uint32_t>(slot), tokens.data(), tokens.size_bytes());
  const uint64_t vocabulary = plan_->header->vocabulary;
  const uint32_t heads_max = plan_->header->head_rows_max;
  for (uint32_t begin = 0; begin < count; begin += rows_) {
    rows_ = 0;
    while (rows_ < chunk && begin + rows_ < count) add_row(slot, begin + rows_);
    run_body(rows_);
    scored.written = begin + rows_;
    uint32_t row = begin < first ? static_cast<uint32_t>(first) - begin : 0;
    while (row < rows_) {
      const uint32_t heads = rows_ - row < heads_max ? rows_ - row : heads_max;
      for (uint32_t i = 0; i < heads; ++i) {
        tables_->head_rows[i] = row + i;
        tables_->head_requests[i] = plan::kNoneIndex;
        tables_->head_positions[i] = begin + row + i + 1;
      }
      run_head(heads);
      if (logits != nullptr) {
        float* target = logits + (begin + row - first) * vocabulary;
        std::memcpy(target, tables_->logits, heads * vocabulary * sizeof *logits);
      }
      row += heads;
    }
    ++counters_.steps;
    counters_.rows += rows_;
  }
  release_lease(slot);
  release_slot(slot);
}

}  // namespace ingot::core
