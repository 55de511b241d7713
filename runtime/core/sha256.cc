#include "sha256.h"

#include <bit>
#include <cstring>

namespace ingot {
namespace {

// FIPS 180-4, 5.3.3: the same of the square roots of the first 8 primes.
constexpr uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static_assert(std::endian::native == std::endian::little,
              "plans and digests are read on little-endian machines");

uint32_t load_big(const std::byte* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return __builtin_bswap32(word);
}

// FIPS 180-4, 6.2.2: one block.
void compress_one(uint32_t state[8], const std::byte* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = load_big(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Round[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += sums[i];
}

}  // namespace

void sha256_compress_scalar(uint32_t state[8], const std::byte* blocks, uint64_t count) {
  for (; count != 0; --count, blocks += kSha256BlockBytes) compress_one(state, blocks);
}

Sha256Digest sha256_with(Sha256Compress compress, std::span<const std::byte> data) {
  uint32_t state[8];
  std::memcpy(state, kInitial, sizeof state);
  const uint64_t whole = data.size() / kSha256BlockBytes;
  if (whole != 0) compress(state, data.data(), whole);
  // The rest, a one bit, zeros, and the length in bits: one block or two (5.1.1).
  std::byte last[2 * kSha256BlockBytes] = {};
  const uint64_t rest = data.size() % kSha256BlockBytes;
  if (rest != 0) std::memcpy(last, data.data() + whole * kSha256BlockBytes, rest);
  last[rest] = std::byte{0x80};
  const uint64_t blocks = rest < kSha256BlockBytes - 8 ? 1 : 2;
  const uint64_t bits = __builtin_bswap64(uint64_t{data.size()} * 8);
  std::memcpy(last + blocks * kSha256BlockBytes - sizeof bits, &bits, sizeof bits);
  compress(state, last, blocks);
  Sha256Digest digest;
  for (uint32_t& word : state) word = __builtin_bswap32(word);
  std::memcpy(digest.data(), state, digest.size());
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> data) {
  // Asked once: CPUID leaves the guest on a virtual machine, which takes longer than a short hash.
  static const Sha256Compress compress =
      sha256_sha_ni_supported() ? sha256_compress_sha_ni : sha256_compress_scalar;
  return sha256_with(compress, data);
}

}  // namespace ingot
