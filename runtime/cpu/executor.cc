#include "executor.h"

#include "../core/error.h"
#include "../core/sampler.h"
#include "float_mode.h"

namespace ingot::cpu {
namespace {

// Pieces that a phase is cut into per worker: a few, so that a worker that was interrupted does not hold up
// the others.
constexpr uint32_t kPiecesPerWorker = 4;

}  // namespace

uint32_t Executor::bind(const PlanView& plan, const core::Regions& regions, uint32_t requests, Isa isa) {
  plan_ = &plan;
  regions_ = &regions;
  requests_ = requests;
  isa_ = isa;
  for (const KernelEntry& entry : kernels(isa)) entries_[static_cast<uint32_t>(entry.id)] = &entry;
  const KernelEntry& sample = core::sample_kernel();
  entries_[static_cast<uint32_t>(sample.id)] = &sample;
  for (const plan::KernelRecord& kernel : plan.kernels) {
    if (kernel.id >= kKernelIds || entries_[kernel.id] == nullptr) return kernel.id;
  }
  return plan::kNoneIndex;
}

KernelArgs Executor::resolve(const plan::CommandRecord& command) const {
  KernelArgs args;
  for (uint32_t i = 0; i < plan::kCommandTensors; ++i) {
    if (command.tensors[i] == plan::kNoneIndex) continue;
    const plan::TensorRecord& tensor = plan_->tensors[command.tensors[i]];
    const core::Place place = regions_->place(tensor);
    args.operand[i] = {place.data, place.stride, tensor.dims};
  }
  args.f = command.f;
  args.u = command.u;
  args.flags = command.flags;
  args.rows = rows_;
  args.requests = requests_;
  return args;
}

void Executor::run(const plan::ProgramRecord& program, uint32_t rows) {
  INGOT_ASSERT(rows >= 1 && rows <= program.rows, "executor", "live rows fit the program");
  program_ = &program;
  rows_ = rows;
  pool_.run(&Executor::job, this);
}

void Executor::job(void* executor) {
  const FloatMode mode;
  static_cast<Executor*>(executor)->walk();
}

void Executor::walk() {
  const uint32_t end = program_->command_begin + program_->command_count;
  for (uint32_t c = program_->command_begin; c < end; ++c) {
    const plan::CommandRecord& command = plan_->commands[c];
    const KernelArgs args = resolve(command);
    const KernelEntry& entry = *entries_[command.kernel];
    for (uint32_t p = 0; p < entry.phase_count; ++p) {
      const Phase& phase = entry.phases[p];
      const uint32_t items = phase.items(args);
      const uint32_t pieces = items / (pool_.threads() * kPiecesPerWorker);
      const uint32_t chunk = pool_.threads() == 1 ? items : pieces == 0 ? 1 : pieces;
      for (uint32_t begin = pool_.claim(chunk); begin < items; begin = pool_.claim(chunk)) {
        phase.run(args, begin, items - begin < chunk ? items : begin + chunk);
      }
      pool_.barrier();
    }
  }
}

}  // namespace ingot::cpu
