// attention for AVX2 over every KV format. Scores are computed with tokens in lanes, outputs with head
// elements in lanes, so that no chain is ever split. Up to four queries that share keys and values (heads of
// a group, rows of a lease) go over a granule together; what a query does not see is blended out, never
// multiplied.
#if defined(__x86_64__)
#include <cstring>
#include <type_traits>

#include "attention.h"
#include "math_avx2.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

constexpr uint32_t kTokens = plan::kGranuleTokens;
constexpr uint32_t kHeadMax = plan::kLimitHeadSize;
constexpr uint32_t kBatch = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// KV formats: the stored type and how eight values are read and written. Only i8 has scales.
struct KvBf16 {
  using Code = uint16_t;
  static constexpr bool kScaled = false;
  static __m256 load8(const Code* codes) { return load8_bf16(codes); }
  static void encode8(Code* to, __m256 value) { encode8_bf16(to, value); }
};
struct KvE4m3 {
  using Code = uint8_t;
  static constexpr bool kScaled = false;
  static __m256 load8(const Code* codes) { return load8_e4m3(codes); }
  static void encode8(Code* to, __m256 value) { encode8_float8<E4m3>(to, value); }
};
struct KvE5m2 {
  using Code = uint8_t;
  static constexpr bool kScaled = false;
  static __m256 load8(const Code* codes) { return load8_e5m2(codes); }
  static void encode8(Code* to, __m256 value) { encode8_float8<E5m2>(to, value); }
};
struct KvI8 {
  using Code = int8_t;
  static constexpr bool kScaled = true;
  static __m256 load8(const Code* codes) { return load8_i8(codes); }
};

// --- phase 1
// ------------------------------------------------------------------------------------------------

// Normalises and rotates a head into `to`.
void prepare_head(const Attention& a, const float* from, const float* norm, uint32_t row, float* to) {
  const __m256 factor = _mm256_set1_ps(norm == nullptr ? 1.0f : rms_factor8(from, a.head, a.eps));
  for (uint32_t d = 0; d < a.head; d += kLanes) {
    __m256 value = _mm256_loadu_ps(from + d);
    if (norm != nullptr) value = _mm256_mul_ps(_mm256_mul_ps(value, factor), _mm256_loadu_ps(norm + d));
    _mm256_storeu_ps(to + d, value);
  }
  if (a.rope != nullptr) rope_head8(to, a.rope + size_t{row} * 2 * a.pairs, a.pairs);
}

// A head's codes, and the scale's bits for i8, else 0.
template <typename Kv>
uint16_t encode_head(const float* head, uint32_t size, typename Kv::Code* codes) {
  if constexpr (Kv::kScaled) {
    __m256 largest = _mm256_setzero_ps();
    for (uint32_t d = 0; d < size; d += kLanes) {
      largest = _mm256_max_ps(magnitude8(_mm256_loadu_ps(head + d)), largest);  // NaN leaves `largest`
    }
    const uint16_t bits = f16_encode_scale(max_reduce8(largest) / kCodeMax);
    const __m256 scale = _mm256_set1_ps(f16_decode(bits));
    for (uint32_t d = 0; d < size; d += kLanes) {
      const __m256i code = code_of8(_mm256_div_ps(_mm256_loadu_ps(head + d), scale));
      store8_bytes(reinterpret_cast<uint8_t*>(codes + d), bits == 0 ? _mm256_setzero_si256() : code);
    }
    return bits;
  } else {
    for (uint32_t d = 0; d < size; d += kLanes) Kv::encode8(codes + d, _mm256_loadu_ps(head + d));
    return 0;
  }
}

template <typename Kv>
void write(const KernelArgs& args, uint32_t begin, uint32_t end) {
  using Code = typename Kv::Code;
  const Attention a = attention_of(args);
  alignas(32) float key[kHeadMax];
  alignas(32) Code codes[kHeadMax];
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = a.qkv + row * (a.q_width() + size_t{2} * a.kv_heads * a.head);
    for (uint32_t h = 0; h < a.query_heads; ++h) {
      prepare_head(a, x + size_t{h} * a.head, a.q_norm, row, a.q + row * a.q_width() + size_t{h} * a.head);
    }
    const uint32_t token = a.positions[row] % kTokens;
    const uint64_t granule = a.granule(row, a.positions[row] / kTokens);
    for (uint32_t h = 0; h < a.kv_heads; ++h) {
      prepare_head(a, x + a.q_width() + size_t{h} * a.head, a.k_norm, row, key);
      const uint16_t k_scale = encode_head<Kv>(key, a.head, codes);
      Code* keys = a.keys<Code>(granule, h) + token;
      for (uint32_t d = 0; d < a.head; ++d) keys[d * kTokens] = codes[d];
      const float* value = x + a.q_width() + size_t{a.kv_heads + h} * a.head;
      Code* values = a.values<Code>(granule, h) + size_t{token} * a.head;
      const uint16_t v_scale = encode_head<Kv>(value, a.head, values);
      if constexpr (Kv::kScaled) {
        Attention::scales(a.k_scale, granule, h)[token] = k_scale;
        Attention::scales(a.v_scale, granule, h)[token] = v_scale;
      }
    }
  }
}

// --- phase 2
// ------------------------------------------------------------------------------------------------

// One query head between granules: the largest score, the sum of weights and the weighted sum of values.
struct Query {
  const float* q;
  float* out;
  uint32_t position, seen;  // it sees the tokens [seen, position]
  uint32_t low, high;       // the part of them in this granule
  bool first;               // no granule before this one
  float m, l;
  alignas(32) float p[kTokens];  // scores, then weights
  alignas(32) float acc[kHeadMax];
};

// Scores of kCount queries and 8 * kVectors tokens from `token` on.
template <typename Kv, uint32_t kCount, uint32_t kVectors>
inline void score_block(const typename Kv::Code* keys, uint32_t head, uint32_t token, Query* queries) {
  __m256 acc[kCount][kVectors];
  INGOT_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) acc[i][v] = _mm256_setzero_ps();
  }
  const typename Kv::Code* line = keys + token;
  for (uint32_t d = 0; d < head; ++d, line += kTokens) {
    __m256 k[kVectors];
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) k[v] = Kv::load8(line + v * kLanes);
    INGOT_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const __m256 q = _mm256_broadcast_ss(queries[i].q + d);
      INGOT_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) acc[i][v] = _mm256_fmadd_ps(q, k[v], acc[i][v]);
    }
  }
  INGOT_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) _mm256_store_ps(queries[i].p + token + v * kLanes, acc[i][v]);
  }
}

// Scores of the tokens [low, high), rounded out to blocks of 16; few queries take longer blocks, so that
// there are always about eight chains.
template <typename Kv, uint32_t kCount>
void scores(const typename Kv::Code* keys, uint32_t head, uint32_t low, uint32_t high, Query* queries) {
  for (uint32_t token = low / 16 * 16; token < high;) {
    if constexpr (kCount == 1) {
      if (token + 64 <= kTokens && high > token + 32) {
        score_block<Kv, kCount, 8>(keys, head, token, queries);
        token += 64;
        continue;
      }
    }
    if constexpr (kCount <= 2) {
      if (token + 32 <= kTokens && high > token + 16) {
        score_block<Kv, kCount, 4>(keys, head, token, queries);
        token += 32;
        continue;
      }
    }
    score_block<Kv, kCount, 2>(keys, head, token, queries);
    token += 16;
  }
}

// Which lanes of the eight tokens from `token` on lie in [low, high).
inline __m256 seen_lanes(uint32_t token, uint32_t low, uint32_t high) {
  const uint32_t below = low > token ? low - token : 0;
  const uint32_t until = high - token < kLanes ? high - token : kLanes;
  return _mm256_castsi256_ps(_mm256_andnot_si256(first_lanes(below), first_lanes(until)));
}

// Turns scores into weights and brings m, l and acc up to date. `k_scale` and `v_scale` are null without
// scales.
void softmax(const Attention& a, const uint16_t* k_scale, const uint16_t* v_scale, Query& query) {
  const uint32_t begin = query.low / kLanes * kLanes;
  const __m256 scale = _mm256_set1_ps(a.softmax_scale);
  const __m256 nothing = _mm256_set1_ps(-kInfinity);
  __m256 largest = _mm256_set1_ps(query.m);
  for (uint32_t t = begin; t < query.high; t += kLanes) {
    __m256 score = _mm256_load_ps(query.p + t);
    if (k_scale != nullptr) score = _mm256_mul_ps(score, load8_f16(k_scale + t));
    score = _mm256_mul_ps(score, scale);
    score = _mm256_blendv_ps(nothing, score, seen_lanes(t, query.low, query.high));
    _mm256_store_ps(query.p + t, score);
    largest = _mm256_max_ps(score, largest);  // NaN leaves `largest`
  }
  const float m = max_reduce8(largest);
  const float c = query.first ? 0.0f : exp_(query.m - m);
  __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (uint32_t t = begin; t < query.high; t += kLanes) {
    const __m256 seen = seen_lanes(t, query.low, query.high);
    __m256 p = exp8(_mm256_sub_ps(_mm256_load_ps(query.p + t), _mm256_set1_ps(m)));
    p = _mm256_and_ps(p, seen);
    if (t % 16 == 0) {
      sum[0] = _mm256_add_ps(sum[0], p);
    } else {
      sum[1] = _mm256_add_ps(sum[1], p);
    }
    if (v_scale != nullptr) p = _mm256_mul_ps(p, load8_f16(v_scale + t));
    _mm256_store_ps(query.p + t, p);
  }
  query.m = m;
  query.l = __builtin_fmaf(query.l, c, sum16_reduce8(sum[0], sum[1]));
  for (uint32_t d = 0; d < a.head; d += kLanes) {
    _mm256_store_ps(query.acc + d, _mm256_mul_ps(_mm256_load_ps(query.acc + d), _mm256_set1_ps(c)));
  }
}

// Adds the weighted values of the tokens [low, high), which every query sees, to elements d..d + 8 *
// kVectors.
template <typename Kv, uint32_t kCount, uint32_t kVectors>
inline void value_block(const typename Kv::Code* values, uint32_t head, uint32_t d, uint32_t low,
                        uint32_t high, Query* const* queries) {
  __m256 acc[kCount][kVectors];
  INGOT_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) acc[i][v] = _mm256_load_ps(queries[i]->acc + d + v * kLanes);
  }
  const float* p[kCount];
  INGOT_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) p[i] = queries[i]->p;
  const typename Kv::Code* line = values + size_t{low} * head + d;
  for (uint32_t t = low; t < high; ++t, line += head) {
    __m256 value[kVectors];
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) value[v] = Kv::load8(line + v * kLanes);
    INGOT_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const __m256 weight = _mm256_broadcast_ss(p[i] + t);
      INGOT_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) acc[i][v] = _mm256_fmadd_ps(weight, value[v], acc[i][v]);
    }
  }
  INGOT_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    INGOT_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) _mm256_store_ps(queries[i]->acc + d + v * kLanes, acc[i][v]);
  }
}

template <typename Kv, uint32_t kCount>
void add_values(const typename Kv::Code* values, uint32_t head, uint32_t low, uint32_t high,
                Query* const* queries) {
  if (low >= high) return;
  constexpr uint32_t kVectors = kCount == 1 ? 8 : kCount == 2 ? 4 : 2;
  uint32_t d = 0;
  for (; d + kVectors * kLanes <= head; d += kVectors * kLanes) {
    value_block<Kv, kCount, kVectors>(values, head, d, low, high, queries);
  }
  for (; d < head; d += kLanes) value_block<Kv, kCount, 1>(values, head, d, low, high, queries);
}

// What all of `count` queries see goes together; what only some see, one query at a time, in ascending order.
template <typename Kv>
void add_all_values(const typename Kv::Code* values, uint32_t head, Query* const* queries, uint32_t count) {
  uint32_t low = 0, high = kTokens;
  for (uint32_t i = 0; i < count; ++i) {
    low = queries[i]->low > low ? queries[i]->low : low;
    high = queries[i]->high < high ? queries[i]->high : high;
  }
  if (low >= high) {
    for (uint32_t i = 0; i < count; ++i) {
      add_values<Kv, 1>(values, head, queries[i]->low, queries[i]->high, queries + i);
    }
    return;
  }
  for (uint32_t i = 0; i < count; ++i) add_values<Kv, 1>(values, head, queries[i]->low, low, queries + i);
  if (count == 4) add_values<Kv, 4>(values, head, low, high, queries);
  if (count == 3) add_values<Kv, 3>(values, head, low, high, queries);
  if (count == 2) add_values<Kv, 2>(values, head, low, high, queries);
  if (count == 1) add_values<Kv, 1>(values, head, low, high, queries);
  for (uint32_t i = 0; i < count; ++i) add_values<Kv, 1>(values, head, high, queries[i]->high, queries + i);
}

// Granule number `index` of the batch's lease, for the queries that see a part of it.
template <typename Kv>
void attend(const Attention& a, const AttentionItem& item, uint32_t index, Query* queries, uint32_t count) {
  using Code = typename Kv::Code;
  Query* active[kBatch];
  uint32_t active_count = 0, low = kTokens, high = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Query& query = queries[i];
    if (index < query.seen / kTokens || index > query.position / kTokens) continue;
    query.first = index == query.seen / kTokens;
    query.low = query.first ? query.seen % kTokens : 0;
    query.high = index == query.position / kTokens ? query.position % kTokens + 1 : kTokens;
    low = query.low < low ? query.low : low;
    high = query.high > high ? query.high : high;
    active[active_count++] = &query;
  }
  if (active_count == 0) return;
  const uint64_t granule = a.granule(item.row, index);
  const Code* keys = a.keys<Code>(granule, item.kv_head);
  if (count == 4) scores<Kv, 4>(keys, a.head, low, high, queries);
  if (count == 3) scores<Kv, 3>(keys, a.head, low, high, queries);
  if (count == 2) scores<Kv, 2>(keys, a.head, low, high, queries);
  if (count == 1) scores<Kv, 1>(keys, a.head, low, high, queries);
  const uint16_t* k_scale = nullptr;
  const uint16_t* v_scale = nullptr;
  if constexpr (Kv::kScaled) {
    k_scale = Attention::scales(a.k_scale, granule, item.kv_head);
    v_scale = Attention::scales(a.v_scale, granule, item.kv_head);
  }
  for (uint32_t i = 0; i < active_count; ++i) softmax(a, k_scale, v_scale, *active[i]);
  add_all_values<Kv>(a.values<Code>(granule, item.kv_head), a.head, active, active_count);
}

template <typename Kv>
void attention(const KernelArgs& args, uint32_t begin, uint32_t end) {
  const Attention a = attention_of(args);
  Query queries[kBatch];
  for (uint32_t i = begin; i < end;) {
    const AttentionItem head_item = attention_item(a, i);
    uint32_t count = 0, from = ~0u, to = 0;
    for (; i < end && count < kBatch; ++i, ++count) {
      const AttentionItem item = attention_item(a, i);
      if (item.kv_head != head_item.kv_head || a.leases[item.row] != a.leases[head_item.row]) break;
      const size_t offset = item.row * a.q_width() + size_t{item.query_head} * a.head;
      Query& query = queries[count];
      query.q = a.q + offset;
      query.out = a.out + offset;
      query.position = a.positions[item.row];
      query.seen = a.first_seen(query.position);
      query.m = -kInfinity;
      query.l = 0.0f;
      std::memset(query.acc, 0, a.head * sizeof(float));
      from = query.seen / kTokens < from ? query.seen / kTokens : from;
      to = query.position / kTokens > to ? query.position / kTokens : to;
    }
    for (uint32_t index = from; index <= to; ++index) attend<Kv>(a, head_item, index, queries, count);
    for (uint32_t n = 0; n < count; ++n) {
      const __m256 l = _mm256_set1_ps(queries[n].l);
      for (uint32_t d = 0; d < a.head; d += kLanes) {
        _mm256_storeu_ps(queries[n].out + d, _mm256_div_ps(_mm256_load_ps(queries[n].acc + d), l));
      }
    }
  }
}

}  // namespace

void attention_i8_write_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvI8>(args, begin, end);
}
void attention_e4m3_write_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvE4m3>(args, begin, end);
}
void attention_e5m2_write_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvE5m2>(args, begin, end);
}
void attention_bf16_write_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvBf16>(args, begin, end);
}
void attention_i8_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvI8>(args, begin, end);
}
void attention_e4m3_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvE4m3>(args, begin, end);
}
void attention_e5m2_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvE5m2>(args, begin, end);
}
void attention_bf16_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvBf16>(args, begin, end);
}

}  // namespace ingot::cpu
#endif
