// linear_e4m3 for AVX2: codes become binary32 of value * 2^-120 by shifts and masks; the activations carry
// 2^100 and the result 2^20.
#if defined(__x86_64__)
#include "linear_float_avx2.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

struct CodesE4m3 {
  static constexpr uint32_t kBytes = 64;  // of a panel for four k: byte k % 4 of each output's 32 bits

  static __m256i load(const uint8_t* line, int half) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + half);
  }
  static __m256 placed(__m256i bits) {
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(0x87F00000))));
  }
  // Arithmetic shifts of 16-bit lanes move two codes at once; the mask takes what belongs.
  static void all(const uint8_t* line, int half, __m256 w[4]) {
    const __m256i codes = load(line, half);
    const __m256i odd = _mm256_srai_epi16(codes, 4);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4);
    w[0] = placed(_mm256_slli_epi32(even, 16));
    w[1] = placed(_mm256_slli_epi32(odd, 16));
    w[2] = placed(even);
    w[3] = placed(odd);
  }
  template <int kChain>
  static __m256 one(const uint8_t* line, int half) {
    return placed(_mm256_srai_epi32(_mm256_slli_epi32(load(line, half), 24 - 8 * kChain), 4));
  }
};

struct DotE4m3 {
  static constexpr uint32_t kRows = 6;

  template <uint32_t kCount>
  static void run(const Linear& l, uint32_t panel, uint32_t row, float (*sums)[plan::kPanelOutputs]) {
    float_rows<CodesE4m3, kCount>(l.panel(panel), l.float_row(row), l.width, sums);
    for (uint32_t i = 0; i < plan::kPanelOutputs; i += kLanes) {
      const float* scales = l.scale + panel * plan::kPanelOutputs + i;
      const __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(0x1p20f));
      for (uint32_t r = 0; r < kCount; ++r) {
        _mm256_storeu_ps(sums[r] + i, _mm256_mul_ps(_mm256_loadu_ps(sums[r] + i), scale));
      }
    }
  }
};

}  // namespace

void linear_e4m3_input_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_float_input8(linear_of(args, kE4m3BytesPer64K), kE4m3InputScale, begin, end);
}

void linear_e4m3_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items8<DotE4m3>(linear_of(args, kE4m3BytesPer64K), args.rows, begin, end);
}

}  // namespace ingot::cpu
#endif
