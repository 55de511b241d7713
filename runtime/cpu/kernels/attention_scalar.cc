// attention in portable C++ over every KV format: rope and KV write, then online softmax granule by granule.
// The definition of the vector kernels' bits. Tokens outside [first seen, position] are never read.
#include <cstring>
#include <type_traits>

#include "attention.h"
#include "math.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

// KV formats: the stored type and how one value is read. Only i8 has scales.
struct KvBf16 {
  using Code = uint16_t;
  static float decode(Code code) { return bf16_decode(code); }
  static Code encode(float value) { return bf16_encode(value); }
};
struct KvE4m3 {
  using Code = uint8_t;
  static float decode(Code code) { return e4m3_decode(code); }
  static Code encode(float value) { return float8_encode<E4m3>(value); }
};
struct KvE5m2 {
  using Code = uint8_t;
  static float decode(Code code) { return e5m2_decode(code); }
  static Code encode(float value) { return float8_encode<E5m2>(value); }
};
struct KvI8 {
  using Code = int8_t;
  static float decode(Code code) { return static_cast<float>(code); }
};

// Normalises and rotates a head into `to`.
void prepare_head(const Attention& a, const float* from, const float* norm, uint32_t row, float* to) {
  const float factor = norm == nullptr ? 1.0f : rms_factor(from, a.head, a.eps);
  for (uint32_t d = 0; d < a.head; ++d) to[d] = norm == nullptr ? from[d] : (from[d] * factor) * norm[d];
  if (a.rope != nullptr) rope_head(to, a.rope + size_t{row} * 2 * a.pairs, a.pairs);
}

// Stores a head's codes `stride` elements apart; the scale's bits for i8, else 0.
template <typename Kv>
uint16_t store_head(const float* head, uint32_t size, typename Kv::Code* to, uint32_t stride) {
  if constexpr (std::is_same_v<Kv, KvI8>) {
    const uint16_t bits = f16_encode_scale(max_magnitude(head, size) / kCodeMax);
    const float scale = f16_decode(bits);
    for (uint32_t d = 0; d < size; ++d) to[d * stride] = bits == 0 ? int8_t{0} : code_of(head[d] / scale);
    return bits;
  } else {
    for (uint32_t d = 0; d < size; ++d) to[d * stride] = Kv::encode(head[d]);
    return 0;
  }
}

template <typename Kv>
void write(const KernelArgs& args, uint32_t begin, uint32_t end) {
  using Code = typename Kv::Code;
  const Attention a = attention_of(args);
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = a.qkv + row * (a.q_width() + size_t{2} * a.kv_heads * a.head);
    for (uint32_t h = 0; h < a.query_heads; ++h) {
      prepare_head(a, x + size_t{h} * a.head, a.q_norm, row, a.q + row * a.q_width() + size_t{h} * a.head);
    }
    const uint32_t token = a.positions[row] % plan::kGranuleTokens;
    const uint64_t granule = a.granule(row, a.positions[row] / plan::kGranuleTokens);
    for (uint32_t h = 0; h < a.kv_heads; ++h) {
      float key[plan::kLimitHeadSize];
      prepare_head(a, x + a.q_width() + size_t{h} * a.head, a.k_norm, row, key);
      const float* value = x + a.q_width() + size_t{a.kv_heads + h} * a.head;
      Code* keys = a.keys<Code>(granule, h) + token;
      Code* values = a.values<Code>(granule, h) + size_t{token} * a.head;
      const uint16_t k_scale = store_head<Kv>(key, a.head, keys, plan::kGranuleTokens);
      const uint16_t v_scale = store_head<Kv>(value, a.head, values, 1);
      if constexpr (std::is_same_v<Kv, KvI8>) {
        Attention::scales(a.k_scale, granule, h)[token] = k_scale;
        Attention::scales(a.v_scale, granule, h)[token] = v_scale;
      }
    }
  }
}

// One query head between granules: the largest score, the sum of weights and the weighted sum of values.
struct Online {
  float m = -std::numeric_limits<float>::infinity();
  float l = 0.0f;
  float acc[plan::kLimitHeadSize] = {};
};

// Tokens [low, high) of one granule.
template <typename Kv>
void attend(const Attention& a, const float* q, uint64_t granule, uint32_t kv_head, uint32_t low,
            uint32_t high, bool first, Online& state) {
  using Code = typename Kv::Code;
  constexpr uint32_t kTokens = plan::kGranuleTokens;
  const Code* keys = a.keys<Code>(granule, kv_head);
  const Code* values = a.values<Code>(granule, kv_head);
  float score[kTokens] = {};
  for (uint32_t d = 0; d < a.head; ++d) {
    for (uint32_t t = low; t < high; ++t) {
      score[t] = std::fma(q[d], Kv::decode(keys[d * kTokens + t]), score[t]);
    }
  }
  float m = state.m;
  for (uint32_t t = low; t < high; ++t) {
    if constexpr (std::is_same_v<Kv, KvI8>) {
      score[t] *= f16_decode(Attention::scales(a.k_scale, granule, kv_head)[t]);
    }
    score[t] *= a.softmax_scale;
    m = score[t] > m ? score[t] : m;
  }
  const float c = first ? 0.0f : exp_(state.m - m);
  float s[16] = {};
  for (uint32_t t = low; t < high; ++t) {
    score[t] = exp_(score[t] - m);  // p
    s[t % 16] += score[t];
  }
  state.m = m;
  state.l = std::fma(state.l, c, sum16_reduce(s));
  for (uint32_t d = 0; d < a.head; ++d) state.acc[d] *= c;
  for (uint32_t t = low; t < high; ++t) {
    float p = score[t];
    if constexpr (std::is_same_v<Kv, KvI8>) {
      p *= f16_decode(Attention::scales(a.v_scale, granule, kv_head)[t]);
    }
    for (uint32_t d = 0; d < a.head; ++d) {
      state.acc[d] = std::fma(p, Kv::decode(values[size_t{t} * a.head + d]), state.acc[d]);
    }
  }
}

template <typename Kv>
void attention(const KernelArgs& args, uint32_t begin, uint32_t end) {
  constexpr uint32_t kTokens = plan::kGranuleTokens;
  const Attention a = attention_of(args);
  for (uint32_t i = begin; i < end; ++i) {
    const AttentionItem item = attention_item(a, i);
    const uint32_t position = a.positions[item.row];
    const uint32_t seen = a.first_seen(position);
    const size_t offset = item.row * a.q_width() + size_t{item.query_head} * a.head;
    Online state;
    for (uint32_t g = seen / kTokens; g <= position / kTokens; ++g) {
      const uint32_t low = g == seen / kTokens ? seen % kTokens : 0;
      const uint32_t high = g == position / kTokens ? position % kTokens + 1 : kTokens;
      attend<Kv>(a, a.q + offset, a.granule(item.row, g), item.kv_head, low, high, g == seen / kTokens,
                 state);
    }
    for (uint32_t d = 0; d < a.head; ++d) a.out[offset + d] = state.acc[d] / state.l;
  }
}

}  // namespace

void attention_i8_write_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvI8>(args, begin, end);
}
void attention_e4m3_write_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvE4m3>(args, begin, end);
}
void attention_e5m2_write_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvE5m2>(args, begin, end);
}
void attention_bf16_write_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  write<KvBf16>(args, begin, end);
}
void attention_i8_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvI8>(args, begin, end);
}
void attention_e4m3_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvE4m3>(args, begin, end);
}
void attention_e5m2_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvE5m2>(args, begin, end);
}
void attention_bf16_scalar(const KernelArgs& args, uint32_t begin, uint32_t end) {
  attention<KvBf16>(args, begin, end);
}

}  // namespace ingot::cpu
