// linear_bf16 for AVX2: a bfloat16 is the upper half of its binary32.
#if defined(__x86_64__)
#include "linear_float_avx2.h"
#include "phases.h"

namespace ingot::cpu {
namespace {

struct CodesBf16 {
  static constexpr uint32_t kBytes = 128;  // of a panel for four k: two lines of two k

  static __m256i load(const uint8_t* line, int half) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + half);
  }
  template <int kOdd>
  static __m256 value(__m256i codes) {
    if constexpr (kOdd == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(codes, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(codes, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000))));
  }
  static void all(const uint8_t* lines, int half, __m256 w[4]) {
    const __m256i first = load(lines, half), second = load(lines + 64, half);
    w[0] = value<0>(first);
    w[1] = value<1>(first);
    w[2] = value<0>(second);
    w[3] = value<1>(second);
  }
  template <int kChain>
  static __m256 one(const uint8_t* lines, int half) {
    return value<kChain % 2>(load(lines + kChain / 2 * 64, half));
  }
};

struct DotBf16 {
  static constexpr uint32_t kRows = 6;

  template <uint32_t kCount>
  static void run(const Linear& l, uint32_t panel, uint32_t row, float (*sums)[plan::kPanelOutputs]) {
    float_rows<CodesBf16, kCount>(l.panel(panel), l.float_row(row), l.width, sums);
  }
};

}  // namespace

void linear_bf16_input_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_float_input8(linear_of(args, kBf16BytesPer64K), 1.0f, begin, end);
}

void linear_bf16_avx2(const KernelArgs& args, uint32_t begin, uint32_t end) {
  linear_items8<DotBf16>(linear_of(args, kBf16BytesPer64K), args.rows, begin, end);
}

}  // namespace ingot::cpu
#endif
