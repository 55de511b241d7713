// The runtime's only source of randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), a counter-based generator. A draw depends on the request's seed and the sampled token's
// position alone, so that it does not matter which other requests run or in which order rows are sampled.
#pragma once

#include <array>
#include <cstdint>

namespace ingot::core {

// Ten rounds of Philox 4x32 of `counter` under `key`.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Uniform in [0, 1), a multiple of 2^-53: words 0 (low) and 1 (high) of philox((position, 0, 0, 0), seed).
constexpr double uniform(uint64_t seed, uint32_t position) {
  const auto words =
      philox({position, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{words[1]} << 32 | words[0]) >> 11) * 0x1p-53;
}

static_assert(philox({0, 0, 0, 0}, {0, 0}) ==
              std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});

}  // namespace ingot::core
