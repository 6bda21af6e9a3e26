// SPDX-License-Identifier: Apache-2.0
// A small training state whose every byte is a formula, cut into shards for any number of ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ranks_on_threads.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/formats/safetensors.h"
#include "tests/error_text.h"

namespace tessera::checkpoint::testing {

using Tensors = std::vector<Manifest::Tensor>;

/// Odd sizes, no dims, no elements, fewer elements than ranks, several widths.
inline Tensors sample_tensors() {
  return {{"param/cls_token", "F32", {1, 1, 5}},
          {"param/blocks.0.qkv.weight", "F32", {7, 13}},
          {"param/scale", "F32", {}},
          {"param/nothing", "F32", {0, 4}},
          {"param/half", "BF16", {11}},
          {"adamw.exp_avg/blocks.0.qkv.weight", "F32", {7, 13}},
          {"adamw.step", "I64", {1}},
          {"mask", "BOOL", {3, 3}}};
}

/// The bytes of a tensor, each a function of (name, position, generation).
class SampleBytes {
 public:
  SampleBytes(const std::string& name, int64_t generation) : generation_(static_cast<uint64_t>(generation)) {
    for (const char c : name) hash_ = hash_ * 33 + static_cast<unsigned char>(c);
  }
  std::byte operator()(uint64_t position) const {
    const uint64_t value = hash_ + position * 31 + generation_ * 17;
    return static_cast<std::byte>(value ^ (value >> 8) ^ (value >> 16));
  }

 private:
  uint64_t hash_ = 0, generation_;
};

/// One rank's shards and their memory. Movable, not copyable: shards point into the memory.
struct RankState {
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorShard> shards;
  RankState() = default;
  RankState(RankState&&) = default;
  RankState(const RankState&) = delete;

  void add(const Manifest::Tensor& tensor, const Region& region) {
    auto& bytes =
        memory.emplace_back(static_cast<size_t>(region.numel()) * formats::dtype_size(tensor.dtype));
    shards.push_back({tensor.name, tensor.dtype, tensor.shape, region, bytes.data()});
  }
  void add(const Manifest::Tensor& tensor, int64_t begin, int64_t end) {
    add(tensor, Region::interval(tensor.shape, begin, end));
  }
  void fill(int64_t generation) {
    for_each([](std::byte& byte, std::byte wanted) { byte = wanted; }, generation);
  }
  /// Bytes that differ from the formula.
  int64_t wrong(int64_t generation) {
    int64_t count = 0;
    for_each([&](std::byte& byte, std::byte wanted) { count += byte != wanted; }, generation);
    return count;
  }

 private:
  template <typename Visit>
  void for_each(const Visit& visit, int64_t generation) {
    for (size_t i = 0; i < shards.size(); ++i) {
      const SampleBytes sample(shards[i].name, generation);
      const uint64_t width = formats::dtype_size(shards[i].dtype);
      for (const SharedRun& run : SharedRuns::in_tensor(shards[i].shape, shards[i].region)) {
        for (uint64_t k = 0; k < static_cast<uint64_t>(run.count) * width; ++k) {
          visit(memory[i][static_cast<uint64_t>(run.b) * width + k],
                sample(static_cast<uint64_t>(run.a) * width + k));
        }
      }
    }
  }
};

/// Rank's part of every tensor, in equal parts of the flattened tensor (the last ones may be empty).
inline RankState part_of(const Tensors& tensors, int64_t rank, int64_t world) {
  RankState state;
  for (const auto& tensor : tensors) {
    const int64_t count = count_of(tensor.shape), part = (count + world - 1) / world;
    state.add(tensor, std::min(rank * part, count), std::min((rank + 1) * part, count));
  }
  return state;
}

inline Progress at_step(int64_t step) {
  return {.step = step,
          .json = R"({"epoch":3,"best":0.1})",
          .recipe_toml = "[model]\nwidth = 7\n",
          .plan_json = R"({"shard":2})",
          .model_json = R"({"name":"vit"})"};
}

/// Saves as `world` ranks; returns their errors.
inline std::vector<std::string> save_ranks(const SaveOptions& options, const Tensors& tensors, int64_t step,
                                           int64_t world, int64_t generation) {
  return run_ranks(world, [&](const Ranks& ranks) {
    auto state = part_of(tensors, ranks.rank, ranks.world);
    state.fill(generation);
    save(options, state.shards, at_step(step), ranks);
  });
}
inline void save_sample(const SaveOptions& options, int64_t step, int64_t world = 1, int64_t generation = 0) {
  for (const auto& error : save_ranks(options, sample_tensors(), step, world, generation)) {
    EXPECT_EQ(error, "");
  }
}

/// Loads as `world` ranks and counts the wrong bytes.
inline int64_t wrong_bytes(const std::filesystem::path& checkpoint, int64_t world, int64_t generation,
                           bool verify = true, const Tensors& tensors = sample_tensors()) {
  int64_t wrong = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    auto state = part_of(tensors, rank, world);
    load(checkpoint, state.shards, verify);
    wrong += state.wrong(generation);
  }
  return wrong;
}

/// Names in a folder, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

}  // namespace tessera::checkpoint::testing
