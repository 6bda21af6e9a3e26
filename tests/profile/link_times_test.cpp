// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth of messages: of planted lines, of a pretended network, and between ranks of this
// host.
#include "tessera/profile/link_times.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

namespace tessera::profile {
namespace {

class PlantedNetwork : public ::testing::TestWithParam<const char*> {};

TEST_P(PlantedNetwork, LatencyAndBandwidthAreFound) {
  at::set_num_threads(1);  // copies must not wait for other programs
  const launch::PretendedNetwork network{.latency = 5e-3, .bytes_per_second = 5e7};
  const auto mesh = mesh::Mesh::pretend(0, {{"host", 2}}, {}, {}, network);
  const auto times = time_messages(*mesh, mesh->world(), MessageKind{GetParam()},
                                   {16 << 10, 64 << 10, 256 << 10, 1 << 20}, 5);
  const planner::LinkTimes link = link_times({}, {times});
  EXPECT_NEAR(link.latency, network.latency, 0.1 * network.latency);
  EXPECT_NEAR(link.bytes_per_second, network.bytes_per_second, 0.1 * network.bytes_per_second);
  EXPECT_LT(link.spread, 0.1);
  EXPECT_EQ(link.samples.front().bytes, 16 << 10);
  EXPECT_EQ(link.samples.back().bytes, 1 << 20);
}

INSTANTIATE_TEST_SUITE_P(Operations, PlantedNetwork,
                         ::testing::Values("all_gather", "reduce_scatter", "exchange"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LinkTimes, MeanOfTheSlowestRanksCounts) {
  const std::vector<MessageTimes> first = {{100, {1.0, 5.0, 3.0}}}, second = {{0, {4.0, 2.0, 9.0}}};
  const planner::LinkTimes link = link_times({}, {first, second});
  ASSERT_EQ(link.samples.size(), 1U);
  EXPECT_EQ(link.samples[0].bytes, 100);
  EXPECT_EQ(link.samples[0].seconds, 6.0);  // of 4, 5, 9: waits add up
}

std::set<std::string> measured(int64_t ranks, bool shared_memory) {
  const LinkSettings settings{
      .ranks = ranks, .shared_memory = shared_memory, .rounds = 2, .sizes = {4 << 10, 64 << 10}};
  std::set<std::string> found;
  for (const planner::LinkTimes& link : measure_links(settings)) {
    found.insert(link.operation + ", " + std::to_string(link.ranks) + " " + link.kind + ", " +
                 link.transport);
    EXPECT_GT(link.bytes_per_second, 0);
    EXPECT_GE(link.latency, 0);
    for (size_t i = 0; i < settings.sizes.size(); ++i) {
      const auto wanted = static_cast<double>(settings.sizes[i]);
      EXPECT_NEAR(static_cast<double>(link.samples.at(i).bytes), wanted, 0.01 * wanted);
    }
  }
  return found;
}

TEST(MeasureLinks, TwoRanksShareMemory) {
  EXPECT_EQ(
      measured(2, true),
      (std::set<std::string>{"all_gather, 2 adjacent, shared memory", "exchange, 2 adjacent, shared memory",
                             "reduce_scatter, 2 adjacent, shared memory", "send, 2 adjacent, TCP"}));
}

TEST(MeasureLinks, FourRanksOverTcpHaveGroupsOfTwoAndFour) {
  std::set<std::string> expected = {"send, 2 strided, TCP"};
  for (const char* operation : {"all_gather", "exchange", "reduce_scatter"}) {
    for (const char* group : {", 2 adjacent, TCP", ", 2 strided, TCP", ", 4 adjacent, TCP"})
      expected.insert(std::string(operation) + group);
  }
  EXPECT_EQ(measured(4, false), expected);
}

TEST(MeasureLinks, OneRankHasNone) { EXPECT_TRUE(measure_links({.ranks = 1}).empty()); }

}  // namespace
}  // namespace tessera::profile
