// SPDX-License-Identifier: Apache-2.0
// What a run says of its tensor parallelism before it starts.
#include "tessera/train/tensor_facts.h"

#include <map>

#include "small_run.h"
#include "tessera/base/text.h"
#include "tessera/plan/traffic.h"
#include "tessera/train/prepared.h"

namespace tessera::train {
namespace {

/// A run before its start, as rank `rank` of 8, 4 on each host.
Prepared prepared(const std::vector<std::string>& sets, int64_t rank,
                  const std::string& launcher = "torchrun") {
  Prepared p;
  p.job.recipe = make_recipe(sets);
  p.ranks.rank = rank;
  p.ranks.world = 8;
  p.ranks.local_world = 4;
  p.ranks.launcher = launcher;
  p.plan = make_plan(p.job.recipe, 8);
  p.sizes = recipe::resolve_batch(p.job.recipe.train, 8);
  return p;
}

std::map<std::string, std::string> said(const Prepared& p) {
  std::map<std::string, std::string> rows;
  for (const auto& [name, value] : tensor_facts(p)) rows[name] = value;
  return rows;
}

TEST(TensorFacts, SayWhatARankHoldsAndWithWhom) {
  EXPECT_TRUE(said(prepared({}, 0)).empty());
  auto rows = said(prepared({"parallel.tensor=2", "shard.units=blocks.2=replicate+tensor4+strided"}, 3));
  EXPECT_EQ(
      rows["tensor parallelism of blocks.0-1"],
      "ranks 2,3 compute together; rank 3 has 1 of 2 heads and 24 of 40 hidden units; the state of this "
      "part is split over ranks 1,3,5,7 (stride 2)");
  EXPECT_EQ(
      rows["tensor parallelism of blocks.2"],
      "ranks 1,3,5,7 (stride 2) compute together; rank 3 has 1 of 2 heads and 8 of 40 hidden units; the "
      "state of this part is on each of ranks 2,3");
  EXPECT_EQ(rows["heads over 4 ranks"],
            "2 heads do not divide evenly (0, 1, 0, 1 in the group's order): attention takes 2 times as long "
            "as with an even split");
  EXPECT_FALSE(rows.contains("heads over 2 ranks"));
  rows = said(prepared({"parallel.tensor=2", "shard.ranks=2"}, 0));
  EXPECT_EQ(
      rows["tensor parallelism of blocks.0-2"],
      "ranks 0,1 compute together; rank 0 has 1 of 2 heads and 16 of 40 hidden units; the state of this "
      "part is split over ranks 0,2 (stride 2); ranks 0,4 (stride 4) hold the same");
}

// 6 images per rank, 5 tokens of 24 fp32 values; the last block's sums and MLP have the class token alone.
TEST(TensorFacts, SayWhatIsSent) {
  const double u = 6 * 5 * 24 * 4, exchanged = 2 * 8 * u + 2 * (u + 3 * u / 5);
  auto rows = said(prepared({"parallel.tensor=2"}, 0));
  EXPECT_NE(rows["sent per rank and step"].find(
                concat("(activations between tensor ranks ", human_bytes(exchanged), ", parameters ")),
            std::string::npos)
      << rows["sent per rank and step"];
  EXPECT_TRUE(rows["zero3 in the place of tensor parallelism"].ends_with(
      " images per rank and micro-batch (here 6)"));
}

// Two stages of 4 ranks: stem and 2 blocks, 2 blocks and head. Stage 0 sends the most: activations forward,
// 5 tokens of 24 fp32 values for each of 6 images in both micro-batches. zero3 passes on the same.
TEST(TensorFacts, SayWhatStagesSend) {
  const std::vector<std::string> stages = {"parallel.pipeline=2", "parallel.micro_batches=2",
                                           "parallel.stages=[2, 2]", "model.depth=4", "model.mlp_width=96"};
  std::vector<std::string> sets = stages;
  sets.emplace_back("parallel.tensor=2");
  Prepared p = prepared(sets, 0);
  p.sizes = batch_sizes(p.job.recipe, p.plan);
  ASSERT_EQ(p.sizes.per_rank, 6);
  auto rows = said(p);
  const double image = 5 * 24 * 4, passed = 2 * 6 * image, exchanged = 2 * 8 * passed;
  const auto inputs = cost_inputs(p.job.recipe, 8);
  const auto sent = [&](const plan::Plan& plan) {  // parameters and gradients
    return plan::step_traffic(p.job.recipe.model, plan, inputs, 2, /*batch=*/0);
  };
  const plan::StepTraffic tensor = sent(p.plan), zero3 = sent(make_plan(make_recipe(stages), 8));
  EXPECT_TRUE(
      rows["tensor parallelism of blocks.0-1"].starts_with("ranks 0,1 compute together; rank 0 has "));
  EXPECT_TRUE(
      rows["tensor parallelism of blocks.2-3"].starts_with("ranks 4,5 compute together; rank 4 has "));
  EXPECT_EQ(rows["sent per step by the rank that sends most"],
            concat(human_bytes(tensor.total() + passed + exchanged), " (activations between tensor ranks ",
                   human_bytes(exchanged), ", to other stages ", human_bytes(passed), ", parameters ",
                   human_bytes(tensor.gathered), ", gradients ", human_bytes(tensor.reduced), ")"));
  const auto images = static_cast<int64_t>((zero3.total() - tensor.total()) / (2 * 2 * 8 * image));
  EXPECT_GT(images, static_cast<int64_t>((zero3.total() - tensor.total()) / (2 * (2 * 8 + 1) * image)))
      << "the activations of stages count on both sides";
  EXPECT_EQ(
      rows["zero3 in the place of tensor parallelism"],
      concat("would send ", human_bytes(zero3.total() + passed), "; tensor parallelism sends less up to ",
             images, " images per rank and micro-batch (here 6)"));
}

TEST(TensorFacts, WarnOfGroupsOverSeveralHosts) {
  const auto warning = [](const std::vector<std::string>& sets, const std::string& launcher = "torchrun") {
    return tensor_network_warning(prepared(sets, 0, launcher));
  };
  EXPECT_EQ(warning({}), "");
  EXPECT_EQ(warning({"parallel.tensor=4"}), "");
  EXPECT_EQ(warning({"parallel.tensor=8"}, "pretend"), "") << "hosts are not known";
  // Of 8 ranks 4 are on the other host; of a strided pair the other rank is.
  const double u = 6 * 5 * 24 * 4, exchanged = 2 * 8 * u + 2 * (u + 3 * u / 5);
  EXPECT_EQ(
      warning({"parallel.tensor=8"}),
      concat("tensor groups have ranks of several hosts (blocks.0-2: ranks 0,1,2,3,4,5,6,7; 4 ranks per "
             "host): up to ",
             human_bytes(4 * exchanged),
             " of activations per rank and step go over the network; groups of 4 adjacent ranks stay "
             "inside a host"));
  EXPECT_NE(warning({"parallel.tensor=2", "parallel.tensor_adjacent=false"})
                .find(concat("ranks 0,4 (stride 4); 4 ranks per host): up to ", human_bytes(exchanged))),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::train
