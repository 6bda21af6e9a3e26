// SPDX-License-Identifier: Apache-2.0
// Whole tensors that can be read in parts, wherever they lie: what consolidate, reshard and imports write
// from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// One thread at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Names as in a checkpoint: "param/blocks.0.attn.qkv.weight", "adamw.exp_avg/...".
  virtual const std::vector<Manifest::Tensor>& tensors() const = 0;
  /// Elements of the flattened tensor (its number in the list) from `begin` on, as many as `out` has bytes
  /// for. Errors: UserError when a file is missing or damaged.
  virtual void read(size_t tensor, int64_t begin, std::span<std::byte> out) = 0;
  /// The position and recipe that go with the tensors.
  virtual const Progress& progress() const = 0;
};

/// Reads a region, wherever its runs lie in the flattened tensor. Short runs are copied out of windows of up
/// to kWindowBytes, so that columns cost few reads. `out`: region.numel() elements. Errors: as read.
void read_region(TensorSource& source, size_t tensor, const Region& region, std::span<std::byte> out);

/// Of each tensor's name its number in source.tensors().
inline std::unordered_map<std::string, size_t> numbers_by_name(const TensorSource& source) {
  std::unordered_map<std::string, size_t> numbers;
  for (size_t i = 0; i < source.tensors().size(); ++i) numbers[source.tensors()[i].name] = i;
  return numbers;
}

/// Bytes that the tools hold of a tensor at a time.
inline constexpr uint64_t kWindowBytes = 16 << 20;

}  // namespace tessera::checkpoint
