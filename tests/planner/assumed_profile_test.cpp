// SPDX-License-Identifier: Apache-2.0
// Expected times are computed here from sizes of layers, and of messages from the numbers of shards that each
// rank sends.
#include "tessera/planner/assumed_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>

#include "tessera/plan/traffic.h"
#include "tessera/planner/profile_json.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

constexpr double kRoundoff = 1e-12;

/// Whatever is not set takes no time worth mentioning.
Machine machine() {
  return {.name = "abacus",
          .source = "a data sheet",
          .compute = "bf16",
          .peak_flops = 1e12,
          .efficiency = 0.5,
          .memory_bytes = 1 << 30,
          .memory_bytes_per_second = 1e18,
          .ranks_of_host = 8,
          .inside_host = {1e-6, 200e9},
          .exchange = {2e-6, 100e9},
          .between_hosts = {1e-5, 10e9}};
}

UnitTimes times_of(const Profile& profile, const std::string& kind, int64_t tensor, int64_t batch,
                   plan::Recompute recompute = plan::Recompute::kNone) {
  for (const UnitTimes& unit : profile.units) {
    if (std::tie(unit.kind, unit.tensor, unit.batch, unit.recompute) ==
        std::tie(kind, tensor, batch, recompute))
      return unit;
  }
  ADD_FAILURE() << kind << ", tensor " << tensor << ", batch " << batch;
  return {};
}

LinkTimes assumed_link(const Profile& profile, const std::string& operation, const std::string& kind,
                       int64_t ranks, int64_t in_host = 1) {
  for (const LinkTimes& link : profile.links) {
    if (std::tie(link.operation, link.kind, link.ranks, link.in_host) ==
        std::tie(operation, kind, ranks, in_host))
      return link;
  }
  ADD_FAILURE() << operation << ", " << kind << ", " << ranks << " ranks, " << in_host << " in a host";
  return {};
}

void expect_close(double found, double expected) { EXPECT_NEAR(found, expected, kRoundoff * expected); }

// A block of ViT-G/14 at 224 pixels: 257 tokens of width 1,664, MLP 8,192.
constexpr double kG14Tokens = 257, kG14Width = 1664, kG14Mlp = 8192;
constexpr double kG14Weights = 4 * kG14Width * kG14Width + 2 * kG14Width * kG14Mlp;
constexpr double kG14Flops = 2 * (kG14Tokens * kG14Weights + 2 * kG14Tokens * kG14Tokens * kG14Width);

TEST(AssumedProfile, BlocksTakeFlopsOverTheSpeedThatIsReached) {
  const Profile profile = assumed_profile(arch::vit_config("G/14"), machine());
  for (const double images : {1., 16., 64.}) {
    const UnitTimes block = times_of(profile, "blocks.0", 1, static_cast<int64_t>(images));
    expect_close(block.forward, images * kG14Flops / 0.5e12);
    expect_close(block.backward, 2 * images * kG14Flops / 0.5e12);
  }
  // 16 x 16 patches of 3 x 14 x 14 values.
  expect_close(times_of(profile, "stem", 1, 4).forward, 4 * 2 * 256. * 588 * kG14Width / 0.5e12);
  expect_close(times_of(profile, "head", 1, 4).forward, 4 * 2 * kG14Width * 1000 / 0.5e12);
}

TEST(AssumedProfile, FewRowsPerProductAreSlower) {
  Machine slow = machine();
  slow.half_rows = 300;
  const Profile profile = assumed_profile(arch::vit_config("G/14"), slow);
  // efficiency * r / (r + half_rows), r the multiply-adds of each weight.
  const double rows = 2 * kG14Flops / 2 / kG14Weights;
  expect_close(times_of(profile, "blocks.0", 1, 2).forward, 2 * kG14Flops / (0.5e12 * rows / (rows + 300)));
}

TEST(AssumedProfile, RecomputationAddsAForwardPass) {
  const Profile profile = assumed_profile(arch::vit_config("G/14"), machine());
  const double forward = 4 * kG14Flops / 0.5e12;
  expect_close(times_of(profile, "blocks.0", 1, 4, plan::Recompute::kAll).backward, 3 * forward);
  expect_close(times_of(profile, "blocks.0", 8, 4, plan::Recompute::kKeepSums).backward, 3 * forward);
}

TEST(AssumedProfile, TensorGroupsTakeTheTimeOfTheRankWithMost) {
  const Profile even = assumed_profile(arch::vit_config("G/14"), machine());
  expect_close(times_of(even, "blocks.0", 8, 4).forward, 4 * kG14Flops / 0.5e12);
  arch::VitConfig config;
  config.width = 96;
  config.heads = 3;
  config.mlp_width = 384;
  const Profile profile = assumed_profile(config, machine());
  // Of 4 d^2 values for heads two thirds are on one of 2 ranks, of 8 d^2 of the MLP a half.
  const double share = 2 * (4 * 2. / 3 + 8 / 2.) / 12;
  expect_close(times_of(profile, "blocks.0", 2, 4).forward,
               share * times_of(profile, "blocks.0", 1, 4).forward);
}

TEST(AssumedProfile, NothingIsFasterThanMemory) {
  Machine slow = machine();
  slow.compute = "fp32";
  slow.memory_bytes_per_second = 1e3;
  const Profile profile = assumed_profile(arch::vit_config("G/14"), slow);
  // The weights of the stem; its input is the image, and in fp32 it keeps nothing.
  expect_close(times_of(profile, "stem", 1, 8).forward, 4 * 588 * kG14Width / 1e3);
  expect_close(profile.optimizer_seconds, 28 / 1e3);
  expect_close(profile.accumulate_seconds, 12 / 1e3);
  slow.compute = "bf16";
  expect_close(assumed_profile(arch::vit_config("G/14"), slow).optimizer_seconds, 30 / 1e3);
}

TEST(AssumedProfile, HasEveryKindDegreeAndModeOnce) {
  Machine six = machine();
  six.ranks_of_host = 6;
  const Profile profile = assumed_profile(arch::vit_config("G/14"), six);
  std::set<std::tuple<std::string, int64_t, plan::Recompute, int64_t>> expected, found;
  for (const int64_t batch : {1, 2, 4, 8, 16, 32, 64}) {
    for (const char* kind : {"stem", "head"}) expected.emplace(kind, 1, plan::Recompute::kNone, batch);
    for (const char* kind : {"blocks.0", "blocks.47"}) {
      for (const int64_t tensor : {1, 2, 4}) {
        expected.emplace(kind, tensor, plan::Recompute::kNone, batch);
        expected.emplace(kind, tensor, plan::Recompute::kAll, batch);
        if (tensor > 1) expected.emplace(kind, tensor, plan::Recompute::kKeepSums, batch);
      }
    }
  }
  for (const UnitTimes& unit : profile.units)
    found.emplace(unit.kind, unit.tensor, unit.recompute, unit.batch);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(profile.units.size(), expected.size());
  for (const UnitTimes& unit : assumed_profile(arch::ResNetConfig(), machine()).units)
    EXPECT_EQ(unit.tensor, 1) << unit.kind;
}

TEST(AssumedProfile, MessagesOfAHostUseItsLink) {
  const Profile profile = assumed_profile(arch::vit_config("G/14"), machine());
  for (const char* kind : {"adjacent", "strided"}) {
    const LinkTimes gather = assumed_link(profile, "all_gather", kind, 4),
                    exchange = assumed_link(profile, "exchange", kind, 8);
    expect_close(gather.latency, 3e-6);
    expect_close(gather.bytes_per_second, 200e9);
    expect_close(exchange.latency, 14e-6);
    expect_close(exchange.bytes_per_second, 100e9);
    EXPECT_EQ(gather.transport, "NCCL");
    expect_close(assumed_link(profile, "send", kind, 2).bytes_per_second, 200e9);
  }
  expect_close(assumed_link(profile, "send", "hosts", 2).bytes_per_second, 10e9);
}

TEST(AssumedProfile, GroupsOfSeveralHostsGatherBetweenHostsFirst) {
  const Profile profile = assumed_profile(arch::vit_config("G/14"), machine());
  const double shard = 1e9;  // bytes; each of 64 ranks sends 63: 7 to other hosts, 7 x 8 to its own
  const LinkTimes whole = assumed_link(profile, "reduce_scatter", "hosts", 64, 8);
  expect_close(63 * shard / whole.bytes_per_second, 7 * shard / 10e9 + 56 * shard / 200e9);
  expect_close(whole.latency, 7 * 1e-5 + 7 * 1e-6);
  const LinkTimes one = assumed_link(profile, "all_gather", "hosts", 64, 1);  // of each of 64 hosts
  expect_close(one.bytes_per_second, 10e9);
  expect_close(one.latency, 63 * 1e-5);
}

/// A group that has 8 ranks of each host uses the network of all of them, a strided one that of one.
TEST(AssumedProfile, StepsUseTheLinkOfTheirGroups) {
  arch::VitConfig config;
  config.pool = arch::Pool::kAverage;
  const Profile profile = assumed_profile(config, machine());
  plan::Plan plan = plan::uniform_plan(config, 64, plan::Level::kZero3, false, 0);
  const StepTime adjacent = predict_step(profile, {.plan = plan});
  EXPECT_EQ(adjacent.assumptions, std::vector<std::string>());
  // Without prefetch each unit's gathers, two (of the last one), and sums are waited for.
  double gathered = 0;
  for (const plan::UnitMessages& unit : plan::unit_messages(config, plan, {}, 0)) {
    const LinkTimes link = assumed_link(profile, "all_gather", "hosts", 64, 8);
    gathered += (unit.name == "head" ? 1 : 2) * (link.latency + unit.gather / link.bytes_per_second);
  }
  expect_close(adjacent.stages[0].parts.gathers, gathered);
  plan::set_tensor(&plan, config, {.tensor = 8}, true);
  const StepTime strided = predict_step(profile, {.plan = plan});
  EXPECT_EQ(strided.assumptions, std::vector<std::string>());
  for (plan::UnitPlan& unit : plan.units) unit.shard = unit.is_cut() ? 8 : 64;
  EXPECT_EQ(predict_step(profile, {.plan = plan}).assumptions, std::vector<std::string>());
}

TEST(AssumeLinks, ReplacesMessagesAndSlowdownsAlone) {
  Machine described = machine();
  described.compute_slowdown = 1.25;
  described.link_slowdown = 1.5;
  const Profile assumed = assumed_profile(arch::model_config("S/16"), described);
  Profile measured = assumed;
  measured.provenance = {};
  measured.provenance.device = "NVIDIA H100";
  measured.provenance.build = "a build";
  measured.links = {assumed.links.back()};
  measured.compute_slowdown = measured.link_slowdown = 1;
  measured.step_seconds = 0.25;
  const Profile before = measured;
  assume_links(described, &measured);
  EXPECT_EQ(measured.links, assumed.links);
  EXPECT_EQ(measured.compute_slowdown, 1.25);
  EXPECT_EQ(measured.link_slowdown, 1.5);
  EXPECT_EQ(measured.provenance.ranks_of_host, 8);
  EXPECT_EQ(measured.provenance.assumed_links, "abacus: a data sheet");
  EXPECT_TRUE(measured.provenance.is_of_gpu()) << "its passes were measured";
  EXPECT_EQ(measured.units, before.units);
  EXPECT_EQ(measured.step_seconds, before.step_seconds);
}

TEST(AssumedProfile, SaysThatNothingWasMeasured) {
  const Profile profile = assumed_profile(arch::vit_config("G/14"), machine());
  EXPECT_EQ(profile.provenance.device, "abacus (assumed)");
  EXPECT_EQ(profile.provenance.assumed, "a data sheet");
  EXPECT_TRUE(profile.provenance.is_assumed());
  EXPECT_EQ(profile.provenance.memory_bytes, 1 << 30);
  EXPECT_EQ(profile.provenance.ranks_of_host, 8);
  EXPECT_EQ(profile_from_json(to_json(profile), "p.json"), profile);
}

}  // namespace
}  // namespace tessera::planner
