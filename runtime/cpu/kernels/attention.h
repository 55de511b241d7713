// An attention command's operands under names, and where a token's keys and values lie. A granule holds 128
// tokens: k as (G, D, 128), lanes being tokens; v as (G, 128, D); i8 adds one float16 scale per token and
// head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../kernel.h"

namespace ingot::cpu {
namespace {

struct Attention {
  const float* qkv;     // (R, A): query heads, key heads, value heads
  const float* rope;    // (R, 2, pairs) or null
  const float* q_norm;  // (head) or null
  const float* k_norm;
  const uint32_t* positions;
  const uint32_t* leases;
  Operand granules, k, v, k_scale, v_scale;
  float* q;    // (R, Q) scratch
  float* out;  // (R, Q)
  uint32_t query_heads, kv_heads, head, pairs, window, rows;
  float softmax_scale, eps;

  uint32_t group() const { return query_heads / kv_heads; }
  size_t q_width() const { return size_t{query_heads} * head; }
  // Granule number `index` of a row's lease.
  uint64_t granule(uint32_t row, uint32_t index) const {
    return reinterpret_cast<const uint32_t*>(granules.data + leases[row] * granules.stride)[index];
  }
  // Keys of one kv head in a granule: (head, 128).
  template <typename Code>
  Code* keys(uint64_t granule, uint32_t kv_head) const {
    return reinterpret_cast<Code*>(k.data + granule * k.stride) + plane(kv_head);
  }
  // Values of one kv head in a granule: (128, head).
  template <typename Code>
  Code* values(uint64_t granule, uint32_t kv_head) const {
    return reinterpret_cast<Code*>(v.data + granule * v.stride) + plane(kv_head);
  }
  // Scales of one kv head in a granule: (128) float16.
  static uint16_t* scales(const Operand& operand, uint64_t granule, uint32_t kv_head) {
    return reinterpret_cast<uint16_t*>(operand.data + granule * operand.stride) +
           size_t{kv_head} * plan::kGranuleTokens;
  }
  // First position that the row at `position` sees.
  uint32_t first_seen(uint32_t position) const {
    return window != 0 && position >= window ? position - window + 1 : 0;
  }

 private:
  size_t plane(uint32_t kv_head) const { return size_t{kv_head} * head * plan::kGranuleTokens; }
};

// A phase 2 item: one query head of one row. Neighbouring items share keys and values.
struct AttentionItem {
  uint32_t kv_head, row, query_head;
};

inline AttentionItem attention_item(const Attention& a, uint32_t item) {
  const uint32_t group = a.group();
  const uint32_t per_kv_head = a.rows * group;
  const uint32_t kv_head = item / per_kv_head;
  return {kv_head, item % per_kv_head / group, kv_head * group + item % group};
}

inline Attention attention_of(const KernelArgs& args) {
  namespace at = plan::operand::attention_i8;
  static_assert(at::kOut == uint32_t{plan::operand::attention_bf16::kOut});
  static_assert(at::kOut == uint32_t{plan::operand::attention_e4m3::kOut});
  static_assert(at::kOut == uint32_t{plan::operand::attention_e5m2::kOut});
  const auto floats = [&](uint32_t i) { return reinterpret_cast<float*>(args.operand[i].data); };
  const auto words = [&](uint32_t i) { return reinterpret_cast<const uint32_t*>(args.operand[i].data); };
  Attention a;
  a.qkv = floats(at::kQkv);
  a.rope = floats(at::kRope);
  a.q_norm = floats(at::kQNorm);
  a.k_norm = floats(at::kKNorm);
  a.positions = words(at::kPositions);
  a.leases = words(at::kLeases);
  a.granules = args.operand[at::kGranules];
  a.k = args.operand[at::kK];
  a.v = args.operand[at::kV];
  a.k_scale = args.operand[at::kKScale];
  a.v_scale = args.operand[at::kVScale];
  a.q = floats(at::kQ);
  a.out = floats(at::kOut);
  a.kv_heads = a.k.dims[0];
  a.head = a.k.dims[1];
  a.query_heads = args.operand[at::kQ].dims[1] / a.head;
  a.pairs = a.rope == nullptr ? 0 : args.operand[at::kRope].dims[2];
  a.window = args.u[0];
  a.rows = args.rows;
  a.softmax_scale = args.f[0];
  a.eps = args.f[1];
  return a;
}

}  // namespace
}  // namespace ingot::cpu
