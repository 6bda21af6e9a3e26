// SPDX-License-Identifier: Apache-2.0
// What plan/traffic.h says that a step sends is what the mesh counts.
#include "tessera/plan/traffic.h"

#include <sys/resource.h>

#include <array>
#include <set>
#include <span>

#include "small_run.h"
#include "tessera/profile/link.h"

namespace tessera::train {
namespace {

struct Sent {
  plan::StepTraffic step;
  double samples = 0;  // in messages that say which samples ranks of a tensor group hold
};

/// By this rank so far.
Sent sent(mesh::Mesh& mesh, const plan::Plan& layout) {
  std::set<const mesh::Group*> tensor;
  for (const plan::UnitPlan& unit : layout.units) {
    if (unit.is_cut()) tensor.insert(&mesh.group(plan::tensor_span(layout, unit)));
  }
  Sent all;
  for (const mesh::Group* group : mesh.groups()) {
    const auto bytes = [&](const char* kind) {
      return group->traffic().contains(kind) ? static_cast<double>(group->traffic().at(kind).bytes_sent) : 0;
    };
    (tensor.contains(group) ? all.samples : all.step.gathered) += bytes("all_gather");
    all.step.reduced += bytes("reduce_scatter");
    all.step.exchanged += bytes("gather_rows") + bytes("sum_rows");
    all.step.passed += bytes("send");
  }
  return all;
}

/// Of two steps, by rank.
std::vector<Sent> sent_in_two_steps(const recipe::Recipe& recipe, int64_t world) {
  std::vector<Sent> all(static_cast<size_t>(world));
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& layout) {
    const auto state = assemble(recipe, layout, mesh, true);
    Curve curve;
    train_until(*state, mesh, 1, curve);  // gathers what it compares at the end
    const Sent before = sent(mesh, layout);
    train_until(*state, mesh, 1, curve);
    const Sent nothing = sent(mesh, layout);
    train_until(*state, mesh, 3, curve);
    const Sent after = sent(mesh, layout);
    const double compared = nothing.step.gathered - before.step.gathered;
    all[static_cast<size_t>(mesh.rank())] = {
        {after.step.gathered - nothing.step.gathered - compared, after.step.reduced - nothing.step.reduced,
         after.step.exchanged - nothing.step.exchanged, after.step.passed - nothing.step.passed},
        after.samples - nothing.samples};
  });
  return all;
}

plan::StepTraffic predicted(const recipe::Recipe& recipe, int64_t world) {
  const plan::Plan layout = make_plan(recipe, world);
  const recipe::BatchSizes sizes = batch_sizes(recipe, layout);
  return plan::step_traffic(recipe.model, layout, cost_inputs(recipe, world), sizes.accumulation,
                            sizes.per_rank);
}

class StepTraffic : public ::testing::TestWithParam<std::string> {};

/// Trains with `sets` on `world` ranks and compares what two steps send.
void expect_traffic(const std::vector<std::string>& sets, int64_t world) {
  const recipe::Recipe recipe = make_recipe(sets);
  const plan::StepTraffic expected = predicted(recipe, world);
  for (const Sent& one : sent_in_two_steps(recipe, world)) {
    EXPECT_EQ(one.step.gathered, 2 * expected.gathered);
    EXPECT_EQ(one.step.reduced, 2 * expected.reduced);
    EXPECT_EQ(one.step.exchanged, 0);
    EXPECT_EQ(one.samples, 0);
  }
}

constexpr std::array kPrecisions = {std::pair("bf16", "bf16"), std::pair("bf16", "fp32"),
                                    std::pair("fp32", "fp32")};

TEST_P(StepTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  for (const int64_t world : {2, 3}) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(world, " ranks, ", precision, ", ", reduce));
      expect_traffic({"shard.level=" + GetParam(), "train.accumulation=2", "shard.units=blocks.1=zero1",
                      concat("precision.compute=", precision), concat("precision.reduce=", reduce)},
                     world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, StepTraffic, ::testing::Values("replicate", "zero1", "zero2", "zero3"),
                         [](const auto& info) { return info.param; });

// 2 of 4 ranks split a copy, but all ranks block 1's, and none block 2's.
TEST(HybridTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  for (const std::string level : {"zero1", "zero2", "zero3"}) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(level, ", ", precision, ", ", reduce));
      expect_traffic({"shard.level=" + level, "shard.ranks=2", "train.accumulation=2",
                      concat("shard.units=blocks.1=", level, "+ranks4, blocks.2=", level, "+ranks1"),
                      concat("precision.compute=", precision), concat("precision.reduce=", reduce)},
                     4);
    }
  }
}

// Frozen units at the beginning have no backward pass, so nothing of one is sent.
TEST(FrozenTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  const std::string frozen = "optimizer.groups=[\"[cp]*: freeze\", \"blocks.[01].*: freeze\"]";
  for (const std::string level : {"replicate", "zero1", "zero2", "zero3"}) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(level, ", ", precision, ", ", reduce));
      expect_traffic({"shard.level=" + level, "train.accumulation=2", frozen,
                      concat("precision.compute=", precision), concat("precision.reduce=", reduce)},
                     4);
    }
  }
}

/// Bytes in a step that a rank sends over one boundary besides activations: the notes, their length, a shape.
double note_bytes(const plan::Plan& layout, const recipe::BatchSizes& sizes) {
  return static_cast<double>(8 * (1 + layout.micro_batches * (5 + 4 * sizes.per_rank) + 11));
}

class PipelineTraffic : public ::testing::TestWithParam<std::string> {};

// The stage that sends most, by the prediction and by count; and what each stage passes on.
TEST_P(PipelineTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  const std::string frozen = "optimizer.groups=[\"[cp]*: freeze\", \"blocks.[01].*: freeze\"]";
  const std::vector<std::vector<std::string>> schedules = {
      {"parallel.schedule=gpipe", "parallel.micro_batches=3"},
      {"parallel.micro_batches=4", "parallel.stages=[2, 1]", frozen},
      {"parallel.micro_batches=4"},
      {"parallel.micro_batches=1"},
      {"parallel.schedule=interleaved", "parallel.virtual_stages=2", "parallel.micro_batches=4"}};
  for (const auto& schedule : schedules) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(join(schedule, ", "), ", ", precision, ", ", reduce));
      std::vector<std::string> sets = {"parallel.pipeline=2", "shard.level=" + GetParam(),
                                       concat("precision.compute=", precision),
                                       concat("precision.reduce=", reduce)};
      sets.insert(sets.end(), schedule.begin(), schedule.end());
      const recipe::Recipe recipe = make_recipe(sets);
      const plan::Plan layout = make_plan(recipe, 4);
      const recipe::BatchSizes sizes = batch_sizes(recipe, layout);
      const plan::StepTraffic expected = predicted(recipe, 4);
      plan::StepTraffic most;
      const std::vector<Sent> all = sent_in_two_steps(recipe, 4);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        const int64_t stage = plan::stage_of(layout, static_cast<int64_t>(rank));
        plan::StepTraffic one = all[rank].step;
        // Boundaries behind a part of the stage that the model goes on after.
        const auto boundaries = static_cast<double>(layout.virtual_stages - (stage == 1 ? 1 : 0));
        one.passed -= 2 * boundaries * note_bytes(layout, sizes);
        const auto images = static_cast<double>(2 * sizes.per_rank * sizes.accumulation);
        EXPECT_EQ(one.passed, images * passed_per_image(recipe.model, layout, stage, cost_inputs(recipe, 4)));
        EXPECT_EQ(one.exchanged, 0);
        if (one.total() > most.total()) most = one;
      }
      EXPECT_EQ(most.gathered, 2 * expected.gathered);
      EXPECT_EQ(most.reduced, 2 * expected.reduced);
      EXPECT_EQ(most.passed, 2 * expected.passed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, PipelineTraffic, ::testing::Values("replicate", "zero1", "zero2", "zero3"),
                         [](const auto& info) { return info.param; });

/// Bytes in a step of the messages that the prediction leaves out: a count and room for 64 numbers, of 8
/// bytes, to each other rank of each group of activations, before each micro-batch.
double sample_bytes(const plan::Plan& layout, int64_t accumulation) {
  std::set<plan::Span> spans;
  for (const plan::UnitPlan& unit : layout.units)
    if (unit.is_cut()) spans.insert(plan::tensor_span(layout, unit));
  double bytes = 0;
  for (const plan::Span& span : spans) bytes += static_cast<double>((span.size - 1) * 8 * (1 + 64));
  return bytes * static_cast<double>(accumulation);
}

/// Ranks may have unequal parts of cut layers: the prediction is of the one that sends most.
void expect_tensor_traffic(const recipe::Recipe& recipe, int64_t world) {
  const plan::StepTraffic expected = predicted(recipe, world);
  const double samples = sample_bytes(make_plan(recipe, world), recipe.train.accumulation);
  EXPECT_GT(expected.exchanged, 0);
  plan::StepTraffic most;
  for (const Sent& one : sent_in_two_steps(recipe, world)) {
    EXPECT_EQ(one.step.exchanged, 2 * expected.exchanged);
    EXPECT_EQ(one.samples, 2 * samples);
    if (one.step.total() > most.total()) most = one.step;
  }
  EXPECT_EQ(most.gathered, 2 * expected.gathered);
  EXPECT_EQ(most.reduced, 2 * expected.reduced);
}

class TensorTraffic : public ::testing::TestWithParam<std::string> {};

TEST_P(TensorTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  static constexpr std::array kRecompute = {"", "+recompute", "+regather", "+keep_sums"};
  const std::string level = GetParam();
  struct Layout {
    std::vector<std::string> rules, sets;  // each rule without its level
    int64_t world;
    size_t kinds = kRecompute.size();  // of recompute
  };
  const std::vector<std::string> all = {"blocks.0-2="};
  const std::vector<Layout> layouts = {
      {all, {"parallel.tensor=2"}, 2},
      {all, {"parallel.tensor=2", "parallel.tensor_adjacent=false"}, 4},
      {all, {"parallel.tensor=4"}, 4},
      {{"blocks.0=tensor2+", "blocks.1=tensor4+", "blocks.2=tensor2+strided+"}, {}, 4},
      // Stem and blocks 0 and 1 are frozen: they send forward alone.
      {all, {"parallel.tensor=2", "optimizer.groups=[\"[cp]*: freeze\", \"blocks.[01].*: freeze\"]"}, 4},
      // 2 of the 4 ranks that have the same part of a block split its state.
      {{"blocks.0-2=ranks2+"}, {"parallel.tensor=2"}, 8, 2},
  };
  size_t number = 0;
  for (const auto& [rules, layout, world, kinds] : layouts) {
    if (level == "replicate" && rules[0].ends_with("ranks2+")) continue;  // there is nothing to split
    for (const char* recompute : std::span(kRecompute).first(kinds)) {
      const auto& [precision, reduce] = kPrecisions[number++ % kPrecisions.size()];
      std::string units;
      for (const std::string& rule : rules)
        units += concat(units.empty() ? "" : ", ", rule, level, recompute);
      SCOPED_TRACE(concat(units, ", ", world, " ranks, ", precision, ", ", reduce));
      std::vector<std::string> sets = layout;
      sets.insert(sets.end(), {concat("shard.units=", units), "shard.level=" + level, "train.accumulation=2",
                               concat("precision.compute=", precision), concat("precision.reduce=", reduce)});
      expect_tensor_traffic(make_recipe(sets), world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, TensorTraffic, ::testing::Values("replicate", "zero1", "zero2", "zero3"),
                         [](const auto& info) { return info.param; });

TEST(Link, IsMeasuredBetweenThreads) {
  for (const bool shared : {true, false}) {
    const LinkRates rates = measure_local_link(2, at::kBFloat16, shared);
    EXPECT_GT(rates.gather, 1e6) << shared;
    EXPECT_GT(rates.reduce, 1e6) << shared;
    EXPECT_LT(rates.gather, 1e12) << shared;
    EXPECT_EQ(rates.how, shared ? "shared memory" : "TCP");
  }
  const LinkRates alone = measure_local_link(1, at::kFloat, true);
  EXPECT_EQ(alone.gather, 0);
  EXPECT_EQ(alone.reduce, 0);
}

TEST(Link, OfManyRanksIsMeasuredBetweenEight) {
  rlimit few{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &few), 0);
  const rlim_t before = few.rlim_cur;
  few.rlim_cur = 150;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(measure_local_link(64, at::kFloat, true).how, "shared memory (measured between 8)");
  few.rlim_cur = before;
  ::setrlimit(RLIMIT_NOFILE, &few);
}

}  // namespace
}  // namespace tessera::train
