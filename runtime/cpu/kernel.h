// The interface between the executor and the CPU kernels. A kernel is a fixed list of phases; a phase is a
// number of items that workers share, with a barrier after it. Kernels are pure: raw pointers in, bytes out,
// no allocation, no state, and the same bits however the items are split (INV-06).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "../../plans/generated/plan_layout.h"

namespace ingot::cpu {

// One resolved operand. `data` is the address of granule or request 0 for those units, with its stride.
struct Operand {
  std::byte* data = nullptr;  // nullptr when absent
  uint64_t stride = 0;        // bytes between granules or requests; 0 for FIXED
  const uint32_t* dims = nullptr;
};

struct KernelArgs {
  Operand operand[plan::kCommandTensors];
  const float* f = nullptr;     // CommandRecord.f
  const uint32_t* u = nullptr;  // CommandRecord.u
  uint32_t flags = 0;
  uint32_t rows = 0;      // live rows: only these are touched
  uint32_t requests = 0;  // request slots; a row's lease is below it
};

struct Phase {
  uint32_t (*items)(const KernelArgs& args);
  void (*run)(const KernelArgs& args, uint32_t begin, uint32_t end);
};

struct KernelEntry {
  plan::Kernel id;
  uint32_t phase_count;
  Phase phases[2];
};

enum class Isa : uint32_t { kScalar = 1, kAvx2 = 2 };

// True when this machine runs kernels of `isa`.
bool isa_supported(Isa isa);
// All CPU kernels of one ISA but SAMPLE, which core/sampler provides; sorted by id.
std::span<const KernelEntry> kernels(Isa isa);

}  // namespace ingot::cpu
