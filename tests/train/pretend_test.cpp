// SPDX-License-Identifier: Apache-2.0
// A pretended rank: only the transport is another one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "../mesh/recorded.h"
#include "on_mesh.h"
#include "tessera/base/error.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/loop/loop.h"

namespace tessera::train {
namespace {

constexpr int64_t kPretendedWorld = 4;

recipe::Recipe pretend_recipe(const std::string& compute, int64_t tensor) {
  return recipe::parse_recipe(R"(
name = "pretend"
[model]
image_size = 16
patch_size = 8
width = 24
depth = 3
heads = 2
mlp_width = 40
classes = 7
drop_path = 0.3
dropout = 0.2
[data]
source = "fake:96"
workers = 1
[train]
batch = 32
accumulation = 2
steps = 3
clip = 0.05
[schedule]
warmup_steps = 1
[optimizer]
name = "sgd"
[shard]
recompute = true
)",
                              "test", ".",
                              {"precision.compute=\"" + compute + "\"", concat("parallel.tensor=", tensor)});
}

/// What a rank computed in three steps.
struct Pretended {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> masters;  // of each unit's shard after every step: SGD's changes are the gradients
};

Pretended train_rank(mesh::Mesh& mesh, const recipe::Recipe& recipe) {
  const auto state = assemble(recipe, make_plan(recipe, kPretendedWorld), mesh, true);
  for (const auto& axis : mesh.axes()) mesh.group(axis.name).set_piece_numbers(1000);
  const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
  Log log(false);
  launch::Ranks ranks;
  ranks.rank = mesh.rank();
  ranks.world = kPretendedWorld;
  const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, kPretendedWorld);
  data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
  options.batch = sizes.batch;
  options.accumulation = sizes.accumulation;
  load_for(state->plan, &options);
  data::TrainLoader loader(*source, recipe.data.transform, options, 0);
  Pretended outcome;
  for (int step = 0; step < 3; ++step) {
    const StepResult result = train::train_step(*state, loader, sizes, 1e-2, {}, mesh);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm);
    for (const auto& unit : state->sharded->units()) outcome.masters.push_back(unit->master().clone());
  }
  return outcome;
}

/// Four ranks over Gloo, as threads; rank 0's outcome and all that it was sent.
Pretended train_for_real(const recipe::Recipe& recipe, testing::Recording& recording) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const plan::Plan plan = make_plan(recipe, kPretendedWorld);
  Pretended outcome;
  std::vector<std::future<void>> ranks;
  for (int64_t rank = 0; rank < kPretendedWorld; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto mesh = mesh::Mesh::over(
          rank, {{"shard", kPretendedWorld}},
          [&](const std::string& line, int64_t r, int64_t size) -> std::shared_ptr<mesh::Transport> {
            auto gloo = mesh::gloo_transport(c10::make_intrusive<c10d::PrefixStore>(line, store), r, size,
                                             "127.0.0.1", {.timeout = std::chrono::seconds(30)});
            if (rank != 0) return gloo;
            return std::make_shared<testing::RecordingTransport>(std::move(gloo), recording[line]);
          },
          mesh_spans(recipe, plan));
      Pretended mine = train_rank(*mesh, recipe);
      if (rank == 0) outcome = std::move(mine);
      mesh->world().barrier("end of test");
    }));
  }
  for (auto& rank : ranks) rank.get();
  return outcome;
}

void expect_same_tensors(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
}

struct PretendCase {
  const char* compute;
  int64_t tensor;
  std::vector<std::string> groups;  // of rank 0
};

void PrintTo(const PretendCase& one, std::ostream* out) { *out << one.compute << ", tensor " << one.tensor; }

class Pretend : public ::testing::TestWithParam<PretendCase> {};

// Fed with what the others of a real run had sent, the pretended rank 0 computes what the real one did.
TEST_P(Pretend, GivenARealRunsMessagesItIsThatRank) {
  at::set_num_threads(1);
  const recipe::Recipe recipe = pretend_recipe(GetParam().compute, GetParam().tensor);
  testing::Recording recording;
  const Pretended expected = train_for_real(recipe, recording);
  const auto mesh = mesh::Mesh::over(
      0, {{"shard", kPretendedWorld}},
      [&](const std::string& line, int64_t rank, int64_t size) {
        return mesh::pretend_transport(rank, size, testing::replay(recording[line]));
      },
      mesh_spans(recipe, make_plan(recipe, kPretendedWorld)));
  const Pretended found = train_rank(*mesh, recipe);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  expect_same_tensors(found.masters, expected.masters);
  const size_t units = found.masters.size() / 3;
  EXPECT_FALSE(found.masters.at(1).equal(found.masters.at(1 + units))) << "of the first block";
  for (const std::string& group : GetParam().groups) {
    EXPECT_FALSE(recording.at(group).empty()) << group;
    for (const auto& [movement, left] : recording.at(group))
      EXPECT_TRUE(left.empty()) << group;  // not one less
  }
}

// Ranks 0 and 1 compute the blocks together; ranks 0 and 2 have the same part of them.
INSTANTIATE_TEST_SUITE_P(
    Layouts, Pretend,
    ::testing::Values(PretendCase{"fp32", 1, {"span/1/4/0"}}, PretendCase{"bf16", 1, {"span/1/4/0"}},
                      PretendCase{"fp32", 2, {"span/1/4/0", "span/1/2/0/activations", "span/2/2/0"}},
                      PretendCase{"bf16", 2, {"span/1/4/0", "span/1/2/0/activations", "span/2/2/0"}}),
    [](const auto& info) { return concat(info.param.compute, "_tensor_", info.param.tensor); });

}  // namespace
}  // namespace tessera::train
