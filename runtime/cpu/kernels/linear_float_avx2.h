// The AVX2 inner loops of the linears with float32 activations. `Codes` says how four k of eight outputs are
// stored: `bytes` of a panel for four k, `all` to decode the four, `one<chain>` to decode k % 4 == chain
// alone. A few rows keep all four chains in registers; more rows take the chains one after another, so that
// each decoded weight meets up to six rows.
#pragma once

#include "linear_avx2.h"

namespace ingot::cpu {
namespace {

constexpr uint32_t kStreamAhead = 4096;  // bytes that one row's stream is fetched ahead

inline __m256 chains_sum(const __m256 chain[4]) {
  return _mm256_add_ps(_mm256_add_ps(chain[0], chain[1]), _mm256_add_ps(chain[2], chain[3]));
}

// One row: both halves of the panel together, in the order of memory.
template <typename Codes>
inline void float_row(const uint8_t* panel, const float* x, uint32_t width, float* sums) {
  __m256 acc[2][4];
  INGOT_UNROLL
  for (int c = 0; c < 4; ++c) acc[0][c] = acc[1][c] = _mm256_setzero_ps();
  for (uint32_t k = 0; k < width; k += 4, panel += Codes::kBytes) {
    INGOT_UNROLL
    for (uint32_t line = 0; line < Codes::kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(panel + line + kStreamAhead), _MM_HINT_T0);
    }
    INGOT_UNROLL
    for (int half = 0; half < 2; ++half) {
      __m256 w[4];
      Codes::all(panel, half, w);
      INGOT_UNROLL
      for (int c = 0; c < 4; ++c) {
        acc[half][c] = _mm256_fmadd_ps(w[c], _mm256_broadcast_ss(x + k + c), acc[half][c]);
      }
    }
  }
  _mm256_storeu_ps(sums, chains_sum(acc[0]));
  _mm256_storeu_ps(sums + kLanes, chains_sum(acc[1]));
}

// Two or three rows: four chains of eight outputs.
template <typename Codes, uint32_t kCount>
inline void float_rows_half(const uint8_t* panel, int half, const float* x, uint32_t width,
                            float (*sums)[plan::kPanelOutputs]) {
  __m256 acc[kCount][4];
  INGOT_UNROLL
  for (uint32_t r = 0; r < kCount; ++r) {
    INGOT_UNROLL
    for (int c = 0; c < 4; ++c) acc[r][c] = _mm256_setzero_ps();
  }
  for (uint32_t k = 0; k < width; k += 4, panel += Codes::kBytes) {
    __m256 w[4];
    Codes::all(panel, half, w);
    INGOT_UNROLL
    for (int c = 0; c < 4; ++c) {
      INGOT_UNROLL
      for (uint32_t r = 0; r < kCount; ++r) {
        acc[r][c] = _mm256_fmadd_ps(w[c], _mm256_broadcast_ss(x + size_t{r} * width + k + c), acc[r][c]);
      }
    }
  }
  INGOT_UNROLL
  for (uint32_t r = 0; r < kCount; ++r) _mm256_storeu_ps(sums[r] + half * 8, chains_sum(acc[r]));
}

// Four to six rows: one chain of sixteen outputs.
template <typename Codes, uint32_t kCount, int kChain>
inline void float_rows_chain(const uint8_t* panel, const float* x, uint32_t width,
                             float (*out)[plan::kPanelOutputs]) {
  __m256 acc[kCount][2];
  INGOT_UNROLL
  for (uint32_t r = 0; r < kCount; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
  for (uint32_t k = kChain; k < width; k += 4, panel += Codes::kBytes) {
    const __m256 low = Codes::template one<kChain>(panel, 0), high = Codes::template one<kChain>(panel, 1);
    INGOT_UNROLL
    for (uint32_t r = 0; r < kCount; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + size_t{r} * width + k);
      acc[r][0] = _mm256_fmadd_ps(low, value, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(high, value, acc[r][1]);
    }
  }
  INGOT_UNROLL
  for (uint32_t r = 0; r < kCount; ++r) {
    _mm256_store_ps(out[r], acc[r][0]);
    _mm256_store_ps(out[r] + kLanes, acc[r][1]);
  }
}

// The sums over k of kCount rows, not yet scaled.
template <typename Codes, uint32_t kCount>
inline void float_rows(const uint8_t* panel, const float* x, uint32_t width,
                       float (*sums)[plan::kPanelOutputs]) {
  if constexpr (kCount == 1) {
    float_row<Codes>(panel, x, width, sums[0]);
  } else if constexpr (kCount <= 3) {
    float_rows_half<Codes, kCount>(panel, 0, x, width, sums);
    float_rows_half<Codes, kCount>(panel, 1, x, width, sums);
  } else {
    alignas(32) float chain[4][kCount][plan::kPanelOutputs];
    float_rows_chain<Codes, kCount, 0>(panel, x, width, chain[0]);
    float_rows_chain<Codes, kCount, 1>(panel, x, width, chain[1]);
    float_rows_chain<Codes, kCount, 2>(panel, x, width, chain[2]);
    float_rows_chain<Codes, kCount, 3>(panel, x, width, chain[3]);
    for (uint32_t r = 0; r < kCount; ++r) {
      for (uint32_t i = 0; i < plan::kPanelOutputs; i += kLanes) {
        const __m256 c[4] = {_mm256_load_ps(chain[0][r] + i), _mm256_load_ps(chain[1][r] + i),
                             _mm256_load_ps(chain[2][r] + i), _mm256_load_ps(chain[3][r] + i)};
        _mm256_storeu_ps(sums[r] + i, chains_sum(c));
      }
    }
  }
}

}  // namespace
}  // namespace ingot::cpu
