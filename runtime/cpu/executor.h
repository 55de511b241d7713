// Walks a program's commands: resolves a command's operands to addresses, then runs its kernel's phases on
// all workers with a barrier after each. Every worker walks the same list; only items are divided.
#pragma once

#include <cstdint>

#include "../core/plan.h"
#include "../core/regions.h"
#include "kernel.h"
#include "pool.h"

namespace ingot::cpu {

class Executor {
 public:
  // Takes the kernels of `isa`; kNoneIndex, or the id of a kernel of the plan that this build does not have.
  // `plan` and `regions` outlive the executor.
  uint32_t bind(const PlanView& plan, const core::Regions& regions, uint32_t requests, Isa isa);
  // Starts workers; 0 or an errno value.
  int start(uint32_t threads) { return pool_.start(threads); }
  void stop() { pool_.stop(); }

  // Runs all commands over `rows` live rows, at most the program's.
  void run(const plan::ProgramRecord& program, uint32_t rows);

  uint32_t threads() const { return pool_.threads(); }
  Isa isa() const { return isa_; }

 private:
  static constexpr uint32_t kKernelIds = plan::kLimitKernels;

  static void job(void* executor);
  void walk();
  KernelArgs resolve(const plan::CommandRecord& command) const;

  const PlanView* plan_ = nullptr;
  const core::Regions* regions_ = nullptr;
  const KernelEntry* entries_[kKernelIds] = {};
  Isa isa_ = Isa::kScalar;
  uint32_t requests_ = 0;
  const plan::ProgramRecord* program_ = nullptr;  // of the run in progress
  uint32_t rows_ = 0;
  Pool pool_;
};

}  // namespace ingot::cpu
