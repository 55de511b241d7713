// A second opinion on a verified plan, in other words than the verifier's: walks every command and computes
// the addresses that its kernel touches, for the fewest and the most granules and requests that open allows.
// The fuzzer walks whatever `verify` accepts; tests hand it damaged tables, which it must not accept.
#pragma once

#include "core/plan.h"

namespace ingot::test {

// nullptr, or what is wrong: an operand reaches out of its region (INV-02), a kernel out of its operand, or
// two arena operands of one command share bytes (INV-03). `view` is one that verify filled, or such a one
// over other records of the same counts.
const char* walk(const PlanView& view);

}  // namespace ingot::test
