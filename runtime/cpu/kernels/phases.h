// Every phase of every CPU kernel, one declaration a phase. kernels.cc puts them together into entries; the
// file that defines a phase is named after its kernel and its ISA.
#pragma once

#include "../kernel.h"

namespace ingot::cpu {

#define INGOT_PHASE(name) void name(const KernelArgs& args, uint32_t begin, uint32_t end)

// embed (embed.cc): items are rows. Copies and products only, one code for every ISA.
INGOT_PHASE(embed_i8);
INGOT_PHASE(embed_e4m3);
INGOT_PHASE(embed_bf16);

// rope_table: items are rows.
INGOT_PHASE(rope_table_scalar);
INGOT_PHASE(rope_table_avx2);

// linear, phase 1: items are rows; gathers, normalises and rounds x into the activation scratch.
INGOT_PHASE(linear_i8_input_scalar);
INGOT_PHASE(linear_e4m3_input_scalar);
INGOT_PHASE(linear_bf16_input_scalar);
INGOT_PHASE(linear_i8_input_avx2);
INGOT_PHASE(linear_e4m3_input_avx2);
INGOT_PHASE(linear_bf16_input_avx2);
// linear, phase 2: items are panels of 16 outputs, pairs of panels with SILU_MUL.
INGOT_PHASE(linear_i8_scalar);
INGOT_PHASE(linear_e4m3_scalar);
INGOT_PHASE(linear_bf16_scalar);
INGOT_PHASE(linear_i8_avx2);
INGOT_PHASE(linear_e4m3_avx2);
INGOT_PHASE(linear_bf16_avx2);

// attention, phase 1: items are rows; normalises and rotates q and k, writes q scratch and KV.
INGOT_PHASE(attention_i8_write_scalar);
INGOT_PHASE(attention_e4m3_write_scalar);
INGOT_PHASE(attention_e5m2_write_scalar);
INGOT_PHASE(attention_bf16_write_scalar);
INGOT_PHASE(attention_i8_write_avx2);
INGOT_PHASE(attention_e4m3_write_avx2);
INGOT_PHASE(attention_e5m2_write_avx2);
INGOT_PHASE(attention_bf16_write_avx2);
// attention, phase 2: items are (kv head, row, query head of the group), the last running fastest.
INGOT_PHASE(attention_i8_scalar);
INGOT_PHASE(attention_e4m3_scalar);
INGOT_PHASE(attention_e5m2_scalar);
INGOT_PHASE(attention_bf16_scalar);
INGOT_PHASE(attention_i8_avx2);
INGOT_PHASE(attention_e4m3_avx2);
INGOT_PHASE(attention_e5m2_avx2);
INGOT_PHASE(attention_bf16_avx2);

#undef INGOT_PHASE

}  // namespace ingot::cpu
