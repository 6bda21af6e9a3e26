// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value is a pure function of (key, index), so any rank, thread or
// recomputation that asks for the same element gets the same number. No state, safe from any thread.
//
// Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {

/// 64-bit key from a seed and a name (a parameter's, a layer's, a purpose's).
uint64_t random_key(uint64_t seed, std::string_view name);
/// 64-bit key from a key and a number (an epoch, a sample), for building keys step by step.
uint64_t random_key(uint64_t key, uint64_t number);

/// The Philox block `counter` of stream `key`: four independent 32-bit words.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter);

/// Word `index` of the stream: element index % 4 of block index / 4.
uint32_t random_word(uint64_t key, uint64_t index);
/// Uniform in [0, 1) with 24 random bits.
float random_uniform(uint64_t key, uint64_t index);
/// Uniform in [0, 1) with 53 random bits (uses block `index` of a stream of its own).
double random_uniform53(uint64_t key, uint64_t index);
/// Uniform integer in [0, bound), without modulo bias worth the name (64-bit multiply-shift; bound < 2^40).
uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound);

/// Fills `out` with elements [begin, begin + out.size()) of the stream of uniforms in [0, 1).
void fill_uniform(uint64_t key, uint64_t begin, std::span<float> out);
/// The same of normals N(mean, std^2) (Box-Muller over the four words of a block). Values further than
/// `cut` standard deviations from the mean are clamped: redrawing would make an element depend on others.
void fill_normal(uint64_t key, uint64_t begin, std::span<float> out, float mean, float std, float cut);

}  // namespace tessera
