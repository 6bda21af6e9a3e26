// SPDX-License-Identifier: Apache-2.0
// The state that all ranks of a training hold together, as whole tensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "on_mesh.h"
#include "tessera/base/region.h"

namespace tessera::train {

/// Tensors by their names in a checkpoint ("param/...", "ema/...", "adamw.exp_avg/..."), and the regions of
/// each that ranks hold, without replicas.
struct WholeState {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::vector<Region>> regions;
};

/// Adds what this rank holds. A replica's values must be those of the rank that saves them: call this on the
/// ranks in rising order. One rank at a time.
inline void add_state(TrainState& state, mesh::Mesh& mesh, WholeState& whole) {
  eager::Backend backend(state, mesh);
  const auto held = backend.state_to_load();
  for (const checkpoint::TensorShard& shard : held->shards()) {
    at::Tensor& tensor = whole.tensors[shard.name];
    if (!tensor.defined()) tensor = at::full(shard.shape, std::nan(""));
    const at::Tensor values = at::from_blob(shard.data, {shard.region.numel()}, at::kFloat);
    for (const SharedRun& run : SharedRuns::in_tensor(shard.shape, shard.region)) {
      const at::Tensor here = tensor.view({-1}).narrow(0, run.a, run.count),
                       found = values.narrow(0, run.b, run.count);
      if (shard.replica) {
        EXPECT_TRUE(here.equal(found)) << shard.name << " of rank " << mesh.rank();
      } else {
        here.copy_(found);
      }
    }
    if (!shard.replica) whole.regions[shard.name].push_back(shard.region);
  }
}

/// The state of all ranks, on every rank's thread; whole on return. Collective.
inline void add_state_of_all(TrainState& state, mesh::Mesh& mesh, WholeState& whole) {
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    if (rank == mesh.rank()) add_state(state, mesh, whole);
    mesh.world().barrier("the state of a rank");
  }
}

}  // namespace tessera::train
