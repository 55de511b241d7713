// linear_i8 for AVX2. A line of a panel holds 16 outputs by 4 k; maddubs multiplies |w| with x carrying w's
// sign. Two products of at most 128 * 127 fit int16, so every dot product is exact.
#if defined(__x86_64__)
#include <cstring>

#include "linear_avx2.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

constexpr uint32_t kLines = plan::kI8Group / 4;  // of a group
constexpr uint32_t kAhead = 4096;                // bytes that one row's stream is fetched ahead

inline __m256i four_codes(const int8_t* x) {
  int32_t codes;
  std::memcpy(&codes, x, sizeof codes);
  return _mm256_set1_epi32(codes);
}

inline __m256i multiply_add(__m256i sum, __m256i w, __m256i w_magnitude, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(w_magnitude, _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

inline __m256i load_half(const uint8_t* line, int half) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + half);
}

// One group of a panel.
struct Group {
  const uint8_t* lines;
  const uint16_t* scales;
};

inline Group group_of(const uint8_t* panel, uint32_t group) {
  const uint8_t* block = panel + size_t{group / 2} * plan::kI8BlockBytes;
  const uint32_t odd = group % 2;
  return {block + 64 + size_t{odd} * kLines * 64, reinterpret_cast<const uint16_t*>(block + odd * 32)};
}

inline __m256 add_group(__m256 sum, __m256i dot, __m256 w_scale, float x_scale) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scale)), sum);
}

struct DotI8 {
  static constexpr uint32_t kRows = 4;

  template <uint32_t kCount>
  static void run(const Linear& l, uint32_t panel, uint32_t row, float (*sums)[plan::kPanelOutputs]) {
    if constexpr (kCount == 1) {
      one_row(l, l.panel(panel), row, sums[0]);
    } else {
      rows_half<kCount>(l, l.panel(panel), 0, row, sums);
      rows_half<kCount>(l, l.panel(panel), 1, row, sums);
    }
  }

 private:
  // Eight outputs for several rows: a weight is loaded once, and sums and products stay in registers.
  template <uint32_t kCount>
  static void rows_half(const Linear& l, const uint8_t* panel, int half, uint32_t row,
                        float (*sums)[plan::kPanelOutputs]) {
    const uint32_t groups = l.width / plan::kI8Group;
    const int8_t* x = l.code_row(row);
    const float* x_scale = l.scale_row(row);
    __m256 acc[kCount];
    INGOT_UNROLL
    for (uint32_t r = 0; r < kCount; ++r) acc[r] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < groups; ++g, x += plan::kI8Group) {
      const Group group = group_of(panel, g);
      __m256i dot[kCount];
      INGOT_UNROLL
      for (uint32_t r = 0; r < kCount; ++r) dot[r] = _mm256_setzero_si256();
      INGOT_UNROLL_2
      for (uint32_t line = 0; line < kLines; ++line) {
        const __m256i w = load_half(group.lines + line * 64, half);
        const __m256i magnitude = _mm256_abs_epi8(w);
        INGOT_UNROLL
        for (uint32_t r = 0; r < kCount; ++r) {
          dot[r] = multiply_add(dot[r], w, magnitude, four_codes(x + size_t{r} * l.width + line * 4));
        }
      }
      const __m256 w_scale = load8_f16(group.scales + half * 8);
      INGOT_UNROLL
      for (uint32_t r = 0; r < kCount; ++r) {
        acc[r] = add_group(acc[r], dot[r], w_scale, x_scale[r * groups + g]);
      }
    }
    INGOT_UNROLL
    for (uint32_t r = 0; r < kCount; ++r) _mm256_storeu_ps(sums[r] + half * 8, acc[r]);
  }

  // Sixteen outputs for one row, in the order of memory.
  static void one_row(const Linear& l, const uint8_t* panel, uint32_t row, float* sums) {
    const int8_t* x = l.code_row(row);
    const float* x_scale = l.scale_row(row);
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t g = 0; g < l.width / plan::kI8Group; ++g, x += plan::kI8Group) {
      const Group group = group_of(panel, g);
      __m256i dot[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      INGOT_UNROLL
      for (uint32_t line = 0; line < kLines; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(group.lines + line * 64 + kAhead), _MM_HINT_T0);
        const __m256i codes = four_codes(x + line * 4);
        INGOT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const __m256i w = load_half(group.lines + line * 64, half);
          dot[half] = multiply_add(dot[half], w, _mm256_abs_epi8(w), codes);
        }
      }
      acc[0] = add_group(acc[0], dot[0], load8_f16(group.scales), x_scale[g]);
      acc[1] = add_group(acc[1], dot[1], load8_f16(group.scales + kLanes), x_scale[g]);
    }
    _mm256_storeu_ps(sums, acc[0]);
    _mm256_storeu_ps(sums + kLanes, acc[1]);
  }
};

}  // namespace

void linear_i8_input_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  Linear l = linear_of(args, kI8BytesPer64K);
  for (uint32_t row = begin; row < end; ++row) {
    const float* x = l.input(row);
    const __m256 factor = _mm256_set1_ps(linear_factor8(l, x));
    for (uint32_t group = 0; group < l.width / plan::kI8Group; ++group) {
      const uint32_t first = group * plan::kI8Group;
      __m256 y[4];
      INGOT_UNROLL
      for (uint32_t i = 0; i < 4; ++i) y[i] = linear_input8(l, x, first + i * kLanes, factor);
      l.scale_row(row)[group] = quantise_group8(y, l.code_row(row) + first);
    }
  }
}

void linear_i8_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items8<DotI8>(linear_of(args, kI8BytesPer64K), args.rows, begin, end);
}

}  // namespace ingot::cpu
#endif
