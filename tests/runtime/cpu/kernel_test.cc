#include "kernel_test.h"

#include <cstring>

using namespace ingot;

// One command over raw memory, by operand position.
struct KernelCall {
  std::byte* data[plan::kCommandTensors];
  uint64_t stride[plan::kCommandTensors];
  uint32_t dims[plan::kCommandTensors][4];
  float f[4];
  uint32_t u[6];
  uint32_t flags, rows, requests;
};

INGOT_HOOK int kernel_isa_supported(uint32_t isa) {
  return cpu::isa_supported(static_cast<cpu::Isa>(isa)) ? 1 : 0;
}

// Ids of the kernels of an ISA; how many there are.
INGOT_HOOK uint32_t kernel_ids(uint32_t isa, uint32_t* ids, uint32_t capacity) {
  uint32_t count = 0;
  for (const cpu::KernelEntry& entry : cpu::kernels(static_cast<cpu::Isa>(isa))) {
    if (count < capacity) ids[count] = static_cast<uint32_t>(entry.id);
    ++count;
  }
  return count;
}

// Runs all phases, `chunk` items at a time (0: all), from the last chunk to the first when `backwards`. The
// number of items of the last phase; 0 when there is no such kernel.
INGOT_HOOK uint32_t kernel_run(uint32_t isa, uint32_t kernel, const KernelCall* call, uint32_t chunk,
                               uint32_t backwards) {
  cpu::KernelArgs args;
  for (uint32_t i = 0; i < plan::kCommandTensors; ++i) {
    args.operand[i] = {call->data[i], call->stride[i], call->dims[i]};
  }
  args.f = call->f;
  args.u = call->u;
  args.flags = call->flags;
  args.rows = call->rows;
  args.requests = call->requests;
  for (const cpu::KernelEntry& entry : cpu::kernels(static_cast<cpu::Isa>(isa))) {
    if (static_cast<uint32_t>(entry.id) != kernel) continue;
    uint32_t items = 0;
    for (uint32_t p = 0; p < entry.phase_count; ++p) {
      items = entry.phases[p].items(args);
      const uint32_t size = chunk == 0 ? items : chunk;
      const uint32_t chunks = (items + size - 1) / size;
      for (uint32_t c = 0; c < chunks; ++c) {
        const uint32_t begin = (backwards != 0 ? chunks - 1 - c : c) * size;
        entry.phases[p].run(args, begin, items - begin < size ? items : begin + size);
      }
    }
    return items;
  }
  return 0;
}

// Runs a piece of an ISA; 0 when there is none of this name.
INGOT_HOOK int kernel_piece(uint32_t isa, const char* name, const void* in, void* out, uint32_t n,
                            uint32_t size) {
  const auto* piece =
      static_cast<cpu::Isa>(isa) == cpu::Isa::kScalar ? cpu::scalar_pieces() : cpu::avx2_pieces();
  for (; piece != nullptr && piece->name != nullptr; ++piece) {
    if (std::strcmp(piece->name, name) != 0) continue;
    piece->run(in, out, n, size);
    return 1;
  }
  return 0;
}
