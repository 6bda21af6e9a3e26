// SPDX-License-Identifier: Apache-2.0
// Checkpoints between layouts with and without tensor parallelism and pipelines: what is loaded is bitwise
// what was saved.
#include <filesystem>
#include <memory>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"
#include "whole_state.h"

namespace tessera::train {
namespace {

struct SavedLayout {
  const char* name;
  int64_t world;
  Sets sets;
};

const std::vector<SavedLayout> kSavedLayouts = {
    {"one_rank", 1, {}},
    {"tensor_2", 2, {"parallel.tensor=2"}},
    {"tensor_2_strided_data_2", 4, {"parallel.tensor=2", "parallel.tensor_adjacent=false"}},
    {"tensor_4", 4, {"parallel.tensor=4"}},
    {"mixed",
     4,
     {"shard.units=\"blocks.0=zero3+tensor2, blocks.1=zero2+tensor4, blocks.2=zero3+tensor2+strided\""}},
    {"zero3_data_3", 3, {}},
    {"pipeline_2", 2, {"parallel.pipeline=2", "parallel.micro_batches=2"}},
    {"pipeline_2_tensor_2", 4, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.micro_batches=3"}},
    {"interleaved_2",
     2,
     {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
      "parallel.micro_batches=2"}},
    {"pipeline_3_uneven_zero1",
     6,
     {"parallel.pipeline=3", "parallel.stages=[0, 2, 1]", "parallel.micro_batches=2", "shard.level=zero1"}},
    {"pipeline_2_shard_ranks_2", 8, {"parallel.pipeline=2", "parallel.micro_batches=2", "shard.ranks=2"}},
};

Sets with(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// Loads `from`, unless it is empty; the state then, after training to `until`, and saved to `to` unless that
/// is empty.
struct Continued {
  WholeState loaded, trained;
  Curve curve;
};

Continued continue_training(const SavedLayout& layout, const Sets& sets, const std::filesystem::path& from,
                            int64_t until, const std::filesystem::path& to) {
  at::set_num_threads(1);
  Continued result;
  const recipe::Recipe recipe = make_recipe(with(layout.sets, sets));
  run_plan_ranks(recipe, layout.world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (!from.empty()) load_state(*state, *checkpoint::find(from, "latest"));
    add_state_of_all(*state, mesh, result.loaded);
    Curve curve;
    train_until(*state, mesh, until, curve);
    add_state_of_all(*state, mesh, result.trained);
    if (!to.empty()) save_state(*state, mesh, to, false);
    if (mesh.rank() == 0) result.curve = curve;
  });
  return result;
}

void expect_same_state(const WholeState& found, const WholeState& expected) {
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(found.tensors.at(name).equal(tensor)) << name;
    const auto& regions = found.regions.at(name);
    EXPECT_EQ(partition_fault(regions, tensor.sizes().vec()), std::nullopt) << name;
  }
}

constexpr int64_t kSavedAt = 3, kEnd = 5;

/// A training that was saved under one layout.
struct SavedTraining {
  TemporaryFolder folder{"tessera-tensor-resume"};
  WholeState state;
};

std::unique_ptr<SavedTraining> save_under(const SavedLayout& layout, const Sets& sets) {
  auto saved = std::make_unique<SavedTraining>();
  saved->state = continue_training(layout, sets, "", kSavedAt, saved->folder.path()).trained;
  return saved;
}

/// Losses and gradient norms of the steps after the save.
void expect_continues(const Curve& found, const Curve& straight) {
  Curve rest;
  rest.losses.assign(straight.losses.begin() + kSavedAt, straight.losses.end());
  rest.norms.assign(straight.norms.begin() + kSavedAt, straight.norms.end());
  expect_close(found, rest, 5e-5);
}

TEST(TensorResume, EveryLayoutLoadsEveryOthersStateBitwise) {
  const Sets average = {"ema.decay=0.9"};
  const Curve straight = train_layout(1, average, kEnd);
  for (const SavedLayout& before : kSavedLayouts) {
    const auto saved = save_under(before, average);
    const auto parameters = arch::parameters(make_recipe().model).size();
    ASSERT_EQ(saved->state.tensors.size(), 4 * parameters) << "weights, two moments and the average";
    for (const SavedLayout& after : kSavedLayouts) {
      SCOPED_TRACE(concat(before.name, " -> ", after.name));
      const Continued found = continue_training(after, average, saved->folder.path(), kEnd, "");
      expect_same_state(found.loaded, saved->state);
      expect_continues(found.curve, straight);
    }
  }
}

// Optimizers that keep rows, columns, or matrices: each layout loads what the one before it saved.
TEST(TensorResume, EveryOptimizersStateIsBitwise) {
  for (const char* name : {"sgd", "lion", "lamb", "lars", "adafactor", "muon"}) {
    const Sets sets = {concat("optimizer.name=", name), "model.width=48", "model.mlp_width=96",
                       "optimizer.lr=1e-3"};
    for (size_t i = 0; i < kSavedLayouts.size(); ++i) {
      const SavedLayout& before = kSavedLayouts[i];
      const SavedLayout& after = kSavedLayouts[(i + 2) % kSavedLayouts.size()];
      SCOPED_TRACE(concat(name, ", ", before.name, " -> ", after.name));
      const auto saved = save_under(before, sets);
      expect_same_state(continue_training(after, sets, saved->folder.path(), 0, "").loaded, saved->state);
    }
  }
}

// Of a ResMLP the MLPs alone are cut.
TEST(TensorResume, StateOfAResMlpIsBitwise) {
  const Sets sets = {"model.family=resmlp", "model.layer_scale=0.5"};
  const Curve straight = train_layout(1, sets, kEnd);
  for (size_t i = 0; i < kSavedLayouts.size(); ++i) {
    const SavedLayout& before = kSavedLayouts[i];
    const SavedLayout& after = kSavedLayouts[(i + 3) % kSavedLayouts.size()];
    SCOPED_TRACE(concat(before.name, " -> ", after.name));
    const auto saved = save_under(before, sets);
    const Continued found = continue_training(after, sets, saved->folder.path(), kEnd, "");
    expect_same_state(found.loaded, saved->state);
    expect_continues(found.curve, straight);
  }
}

// The same layout: the curve of the uninterrupted training, bit by bit.
TEST(TensorResume, OnTheSameRanksIsBitwise) {
  for (const SavedLayout& layout : kSavedLayouts) {
    SCOPED_TRACE(layout.name);
    const Continued straight = continue_training(layout, {}, "", kEnd, "");
    const auto saved = save_under(layout, {});
    const Continued resumed = continue_training(layout, {}, saved->folder.path(), kEnd, "");
    const std::vector<double> rest(straight.curve.losses.begin() + kSavedAt, straight.curve.losses.end());
    EXPECT_EQ(resumed.curve.losses, rest);
    expect_same_state(resumed.trained, straight.trained);
  }
}

TEST(TensorResume, AReshardedCheckpointIsTheSavedOne) {
  const Sets average = {"ema.decay=0.9"};
  for (const SavedLayout& before : kSavedLayouts) {
    const auto saved = save_under(before, average);
    checkpoint::StoredCheckpoint source(
        checkpoint::Folders(*checkpoint::find(saved->folder.path(), "latest")));
    for (const int64_t ranks : {1, 3}) {
      SCOPED_TRACE(concat(before.name, " to ", ranks, " files"));
      const TemporaryFolder resharded("tessera-tensor-reshard");
      checkpoint::reshard(source, resharded.path(), ranks);
      const SavedLayout& after = kSavedLayouts[ranks == 1 ? 3 : 4];
      expect_same_state(continue_training(after, average, resharded.path(), 0, "").loaded, saved->state);
    }
  }
}

}  // namespace
}  // namespace tessera::train
