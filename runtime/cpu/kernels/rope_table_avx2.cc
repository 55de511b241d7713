// rope_table with FMA instructions.
#if defined(__x86_64__)
#include "phases.h"
#include "rope_table.h"

namespace ingot::cpu {

void rope_table_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  rope_table_rows(args, begin, end);
}

}  // namespace ingot::cpu
#endif
