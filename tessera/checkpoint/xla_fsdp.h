// SPDX-License-Identifier: Apache-2.0
// Checkpoints of PyTorch/XLA's FSDP as a source of tensors: one .pth (or .ckpt) of each rank, holding
// {model, shard_metadata, optimizer, ...}.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Files whose names are `prefix` + something that matches the shell pattern `suffix`, sorted. Errors:
/// UserError when there are none.
std::vector<std::filesystem::path> xla_fsdp_files(const std::string& prefix, const std::string& suffix);

struct XlaFsdpOptions {
  bool with_optimizer = true;                                    // where the files have one
  std::vector<std::pair<std::string, std::string>> rename = {};  // beginnings of parameters' names, in turn
  bool for_library = false;      // optimizer state as library::load_module wants it, not as training does
  std::string recipe_toml = {};  // goes into the progress
};

/// Parameters "param/<name>", buffers "buffer/<name>" (those of rank 0), and of the optimizer's state what is
/// sharded like the parameters: "adamw.exp_avg/<name>", "adamw.exp_avg_sq/<name>", else
/// "optimizer/<kind>/<name>". Names are those of the unwrapped module; flattened groups are taken apart;
/// padding is dropped. Works for `flatten_parameters` and `shard_param_on_dim_0` as well. Step: the
/// optimizer's.
///
/// Errors: UserError when files of a rank are missing or doubled, or disagree with those of rank 0, when a
/// file lacks what it must have, and when the optimizer has several groups (its state does not say whose it
/// is).
class XlaFsdpCheckpoint final : public TensorSource {
 public:
  explicit XlaFsdpCheckpoint(const std::vector<std::filesystem::path>& files,
                             const XlaFsdpOptions& options = {});
  ~XlaFsdpCheckpoint() override;

  const std::vector<Manifest::Tensor>& tensors() const override;
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override;
  const Progress& progress() const override;
  int64_t world() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::checkpoint
