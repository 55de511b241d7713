// SHA-256 (FIPS 180-4) of bytes in memory, our own: the runtime links no crypto library. Whole blocks go
// through one of two functions that give the same bits: scalar, or the SHA extensions of x86 when CPUID
// reports them. Nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot {

using Sha256Digest = std::array<std::byte, 32>;

inline constexpr uint64_t kSha256BlockBytes = 64;

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) inline constexpr uint32_t kSha256Round[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// Folds `count` blocks of 64 bytes, of any alignment, into the eight words of `state`.
using Sha256Compress = void (*)(uint32_t state[8], const std::byte* blocks, uint64_t count);

void sha256_compress_scalar(uint32_t state[8], const std::byte* blocks, uint64_t count);
// Needs a processor for which sha256_sha_ni_supported() is true.
void sha256_compress_sha_ni(uint32_t state[8], const std::byte* blocks, uint64_t count);
// Whether this build and this machine have the SHA extensions. CPUID is asked on every call.
bool sha256_sha_ni_supported();

// The digest by the fastest function that this machine runs.
Sha256Digest sha256(std::span<const std::byte> data);
// The same by a chosen function (tests compare the two).
Sha256Digest sha256_with(Sha256Compress compress, std::span<const std::byte> data);

}  // namespace ingot
