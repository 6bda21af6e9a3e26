// SPDX-License-Identifier: Apache-2.0
// One rank's file of a checkpoint of PyTorch/XLA's FSDP, as far as it is understood. Private to the room.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/formats/torch_file.h"

namespace tessera::checkpoint {

/// An entry of the model's state: a shard, or a buffer that every rank has whole.
struct XlaEntry {
  std::string key;
  formats::TorchTensor tensor;
  std::map<std::string, formats::TorchTensor> state =
      {};  // "exp_avg": of the optimizer, shaped like the shard
};

/// What a shard is a part of: the whole parameter, or several that were flattened into one.
struct XlaParameter {
  std::string name;  // of the unwrapped module
  std::vector<int64_t> shape;
};

struct XlaRank {
  std::filesystem::path path;
  int64_t rank = 0, world = 0;
  std::vector<XlaEntry> entries;  // in the order of the model's state
  int64_t optimizer_steps = 0;    // 0: none, or not said
  bool has_optimizer = false;
  std::vector<std::vector<XlaParameter>> parts;  // by entry; one of a buffer
};

bool is_xla_shard(const std::string& key);

/// Reads all but the tensors. Errors: UserError that names the file and what it lacks.
XlaRank read_xla_rank(const std::filesystem::path& path, bool with_optimizer);

}  // namespace tessera::checkpoint
