// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

// Finaliser of SplitMix64: spreads nearby keys over the whole range.
uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

float uniform_from_word(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

std::array<float, 4> normals_of_block(uint64_t key, uint64_t block) {
  const auto words = philox(key, block);
  std::array<float, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    // In double so that the value does not depend on the precision of a vectorised float library.
    const double u1 = (words[2 * pair] + 0.5) * 0x1p-32, u2 = (words[2 * pair + 1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
    out[2 * pair] = static_cast<float>(radius * std::cos(angle));
    out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

}  // namespace

uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a over the name, then mixed with the seed
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return mix(mix(seed) ^ hash);
}

uint64_t random_key(uint64_t key, uint64_t number) {
  return mix(mix(key) ^ mix(number ^ 0x5851F42D4C957F2DULL));
}

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * c[0], p1 = uint64_t{kMultiplier1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

uint32_t random_word(uint64_t key, uint64_t index) { return philox(key, index / 4)[index % 4]; }

float random_uniform(uint64_t key, uint64_t index) { return uniform_from_word(random_word(key, index)); }

double random_uniform53(uint64_t key, uint64_t index) {
  const auto words = philox(key ^ 0xA5A5A5A5A5A5A5A5ULL, index);
  return static_cast<double>(((uint64_t{words[0]} << 32) | words[1]) >> 11) * 0x1p-53;
}

uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound) {
  const auto words = philox(key ^ 0x3C3C3C3C3C3C3C3CULL, index);
  const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

void fill_uniform(uint64_t key, uint64_t begin, std::span<float> out) {
  for (size_t i = 0; i < out.size();) {
    const uint64_t index = begin + i;
    const auto words = philox(key, index / 4);
    for (uint64_t lane = index % 4; lane < 4 && i < out.size(); ++lane, ++i) {
      out[i] = uniform_from_word(words[lane]);
    }
  }
}

// (More than 5 parameters: the numbers of one distribution and the place in its stream.)
void fill_normal(uint64_t key, uint64_t begin, std::span<float> out, float mean, float std, float cut) {
  for (size_t i = 0; i < out.size();) {
    const uint64_t index = begin + i;
    const auto normals = normals_of_block(key, index / 4);
    for (uint64_t lane = index % 4; lane < 4 && i < out.size(); ++lane, ++i) {
      out[i] = mean + std * std::clamp(normals[lane], -cut, cut);
    }
  }
}

}  // namespace tessera
