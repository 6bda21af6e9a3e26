// SPDX-License-Identifier: Apache-2.0
// A random order of n things without a list of them: element i is computed when it is asked for. Pure
// function, safe from any thread.
#pragma once

#include <cstdint>

namespace tessera::data {

/// The permutation `key` of 0 .. size - 1, in 16 bytes for any size.
///
/// Swap-or-not (Hoang, Morris, Rogaway: "An enciphering scheme based on a card shuffle", CRYPTO 2012): in
/// each round a place x and its partner k - x (mod size) swap or not by a coin that both see. Each round is
/// its own inverse, so any number of rounds is a permutation, of any size: no rounding up to a power of two.
class Permutation {
 public:
  /// Requires: size >= 0, below 2^62.
  Permutation(uint64_t key, int64_t size) : key_(key), size_(static_cast<uint64_t>(size)) {}

  /// Element `place`. Requires: 0 <= place < size. Less than a microsecond.
  int64_t operator()(int64_t place) const;

 private:
  uint64_t key_, size_;
};

}  // namespace tessera::data
