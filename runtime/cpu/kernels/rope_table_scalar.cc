// rope_table in portable C++.
#include "phases.h"
#include "rope_table.h"

namespace ingot::cpu {

void rope_table_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  rope_table_rows(args, begin, end);
}

}  // namespace ingot::cpu
