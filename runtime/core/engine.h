// An engine: the six regions of one plan, the executor over them and the requests in flight. The object
// itself lies in the STATE tensor "engine", so that what a plan says is reserved is all there is. States:
// init -> sealed -> closed.
#pragma once

#include <cstdint>

#include "../cpu/executor.h"
#include "admission.h"
#include "memory.h"
#include "plan_file.h"
#include "step.h"

namespace ingot::core {

class Engine {
 public:
  // Reserves, fills, starts. On failure nothing is left behind.
  static ingot_code create(const ingot_plan& plan, const ingot_options* options, Engine** engine,
                           ingot_error* error);
  // Stops the workers and gives everything back, this object included.
  static void close(Engine* engine);

  ingot_code seal(ingot_error* error);
  ingot_code submit(std::span<const uint32_t> prompt, const ingot_sampling& sampling, ingot_handle* handle,
                    ingot_error* error);
  ingot_code step(uint32_t* rows, ingot_error* error);
  ingot_code poll(ingot_handle handle, std::span<plan::EventRecord> events, uint32_t* count,
                  ingot_error* error);
  ingot_code cancel(ingot_handle handle, ingot_error* error);
  ingot_code score(std::span<const uint32_t> tokens, uint32_t chunk, float* logits, ingot_error* error);
  void stats(ingot_stats* stats) const;

 private:
  Engine(const ingot_plan& plan, const Choice& choice) : plan_(&plan), choice_(choice) { hold_plan(plan); }
  ~Engine() { drop_plan(*plan_); }

  ingot_code start(Memory& memory, const Regions& regions, ingot_error* error);
  ingot_code self_test(ingot_error* error);
  ingot_code check_sealed(const char* call, ingot_error* error) const;
  ingot_code check_room(uint64_t tokens, ingot_error* error) const;
  ingot_code find(ingot_handle handle, uint32_t* slot, ingot_error* error) const;

  const ingot_plan* plan_;
  Choice choice_;
  bool sealed_ = false;
  uint64_t bytes_reserved_ = 0;
  Memory memory_;  // empty when the caller owns the block
  Regions regions_;
  Tables tables_ = {};
  cpu::Executor executor_;
  Stepper stepper_;
};

static_assert(sizeof(Engine) <= plan::kEngineBytes && alignof(Engine) <= plan::kTensorAlignment);

// "weights", "scales", "state", "arena", "kv", "io".
const char* region_name(uint32_t index);

}  // namespace ingot::core
