// SHA-256 blocks by the x86 SHA extensions: each pair of SHA256RNDS2 does four rounds; SHA256MSG1 and
// SHA256MSG2 extend the message. The instructions keep the state as the words ABEF and CDGH.
// Source: Intel 64 and IA-32 Software Developer's Manual, volume 2, SHA256RNDS2, SHA256MSG1, SHA256MSG2.
#include "sha256.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

namespace ingot {
namespace {

struct State {
  __m128i abef, cdgh;
};

State load(const uint32_t state[8]) {
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xF0)};
}

void store(const State& from, uint32_t state[8]) {
  const __m128i feba = _mm_shuffle_epi32(from.abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(from.cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

inline void compress_one(State& state, const std::byte* block) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const State before = state;
  __m128i w[4];  // the last 16 words of the message
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {  // four rounds each
    __m128i& words = w[t % 4];
    if (t < 4) {
      words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block) + t);
      words = _mm_shuffle_epi8(words, big_endian);
    } else {
      const __m128i seven_back = _mm_alignr_epi8(w[(t + 3) % 4], w[(t + 2) % 4], 4);
      words = _mm_add_epi32(_mm_sha256msg1_epu32(words, w[(t + 1) % 4]), seven_back);
      words = _mm_sha256msg2_epu32(words, w[(t + 3) % 4]);
    }
    const __m128i sums =
        _mm_add_epi32(words, _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Round) + t));
    state.cdgh = _mm_sha256rnds2_epu32(state.cdgh, state.abef, sums);
    state.abef = _mm_sha256rnds2_epu32(state.abef, state.cdgh, _mm_shuffle_epi32(sums, 0x0E));
  }
  state.abef = _mm_add_epi32(state.abef, before.abef);
  state.cdgh = _mm_add_epi32(state.cdgh, before.cdgh);
}

}  // namespace

void sha256_compress_sha_ni(uint32_t state[8], const std::byte* blocks, uint64_t count) {
  State words = load(state);
  for (; count != 0; --count, blocks += kSha256BlockBytes) compress_one(words, blocks);
  store(words, state);
}

bool sha256_sha_ni_supported() {
  constexpr uint32_t kSsse3 = 1u << 9, kSse41 = 1u << 19, kSha = 1u << 29;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSsse3) == 0 || (c & kSse41) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

}  // namespace ingot

#else

namespace ingot {

void sha256_compress_sha_ni(uint32_t state[8], const std::byte* blocks, uint64_t count) {
  sha256_compress_scalar(state, blocks, count);
}

bool sha256_sha_ni_supported() { return false; }

}  // namespace ingot

#endif
