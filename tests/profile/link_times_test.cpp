// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth of messages: of planted lines, of a pretended network, and between ranks of this
// host.
#include "tessera/profile/link_times.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/text.h"
#include "tessera/mesh/thread_ranks.h"

namespace tessera::profile {
namespace {

class PlantedNetwork : public ::testing::TestWithParam<const char*> {};

TEST_P(PlantedNetwork, LatencyAndBandwidthAreFound) {
  at::set_num_threads(1);  // copies must not wait for other programs
  const launch::PretendedNetwork network{.latency = 5e-3, .bytes_per_second = 5e7};
  const auto mesh = mesh::Mesh::pretend(0, {{"host", 2}}, {}, {}, network);
  QuietCores cores(/*patience=*/0, [](double mine) { return mine; });  // peers are pretended
  const auto times = time_messages(*mesh, mesh->world(), MessageKind{GetParam()},
                                   {16 << 10, 64 << 10, 256 << 10, 1 << 20}, {5, cores});
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

/// Of p pieces each takes b / p / rate on the wire and a latency that passes beside the others. Alone the
/// last gather has come after b / rate + latency, if that is longer than its pieces' sums on the wire, and
/// the last sum a latency and the p + 1st piece later. Beside products the first gather and the last sum
/// remain: a difference of two long times, so it is looked at roughly. With a latency for each of 4 pieces it
/// would be 3.5 times as much.
TEST(PiecesInAPlantedNetwork, TakeOneLatency) {
  constexpr int kTries = 5;  // other programs may use the cores meanwhile
  at::set_num_threads(1);
  const launch::PretendedNetwork network{.latency = 5e-3, .bytes_per_second = 1e8};
  const auto mesh = mesh::Mesh::pretend(0, {{"host", 2}}, {}, {}, network);
  const std::vector<int64_t> sizes = {64 << 10, 256 << 10};
  QuietCores cores(/*patience=*/0, [](double mine) { return mine; });  // peers are pretended
  for (const int64_t pieces : {2, 4}) {
    std::set<int64_t> far(sizes.begin(), sizes.end());
    for (int i = 0; i < kTries && !far.empty(); ++i) {
      const auto times = time_pieces(*mesh, mesh->world(), {.pieces = pieces}, sizes, {3, cores});
      const planner::LinkTimes::InPieces found = piece_times(pieces, {times});
      EXPECT_EQ(found.pieces, pieces);
      for (size_t size = 0; size < sizes.size(); ++size) {
        const auto& [bytes, seconds, exposed] = found.samples[size];
        EXPECT_EQ(bytes, sizes[size]);
        const double piece =
            static_cast<double>(bytes) / static_cast<double>(pieces) / network.bytes_per_second;
        const double alone = 2 * network.latency + static_cast<double>(pieces + 1) * piece,
                     remains = network.latency + piece;
        if (std::abs(seconds - alone / 2) <= 0.1 * alone / 2 && std::abs(exposed - remains) <= remains)
          far.erase(bytes);
      }
    }
    EXPECT_TRUE(far.empty()) << pieces << " pieces of " << *far.begin() << " bytes";
  }
}

TEST(PieceTimes, ExposedIsWhatProductsTakeLonger) {
  const auto rank = [](double alone, double products, double together) {
    return std::vector<PieceTimes>{{{100, {alone, alone}}, {0, {products, products}}, {100, {together, 5}}}};
  };
  const planner::LinkTimes::InPieces found = piece_times(2, {rank(1, 4, 5), rank(2, 3, 6)});
  EXPECT_EQ(found.samples, (std::vector<planner::LinkTimes::InPieces::Sample>{{100, 2, 5.5 - 4}}));
  EXPECT_EQ(piece_times(2, {rank(1, 9, 5)}).samples[0].exposed, 0) << "never below 0";
}

TEST(LinkTimes, MeanOfTheSlowestRanksCounts) {
  const std::vector<MessageTimes> first = {{100, {1.0, 5.0, 3.0}}}, second = {{0, {4.0, 2.0, 9.0}}};
  const planner::LinkTimes link = link_times({}, {first, second});
  ASSERT_EQ(link.samples.size(), 1U);
  EXPECT_EQ(link.samples[0].bytes, 100);
  EXPECT_EQ(link.samples[0].seconds, 6.0);  // of 4, 5, 9: waits add up
}

LinkSettings small_messages(int64_t ranks, bool shared_memory) {
  return {.ranks = ranks, .shared_memory = shared_memory, .rounds = 2, .sizes = {4 << 10, 64 << 10}};
}

/// Names of the groups, whose times are complete.
std::set<std::string> names_of(const std::vector<planner::LinkTimes>& links, const LinkSettings& settings) {
  std::set<std::string> found;
  for (const planner::LinkTimes& link : links) {
    found.insert(concat(link.operation, ", ", link.ranks, " ", link.kind, ", ", link.transport));
    EXPECT_GT(link.bytes_per_second, 0);
    EXPECT_GE(link.latency, 0);
    const bool has_pieces = link.operation == "exchange" && link.transport == "TCP";
    EXPECT_EQ(link.in_pieces.size(), has_pieces ? 2U : 0U);
    for (const auto& measured_pieces : link.in_pieces)
      EXPECT_EQ(measured_pieces.samples.size(), settings.sizes.size());
    for (size_t i = 0; i < settings.sizes.size(); ++i) {
      const auto wanted = static_cast<double>(settings.sizes[i]);
      EXPECT_NEAR(static_cast<double>(link.samples.at(i).bytes), wanted, 0.01 * wanted);
    }
  }
  return found;
}

std::set<std::string> measured(int64_t ranks, bool shared_memory) {
  const LinkSettings settings = small_messages(ranks, shared_memory);
  return names_of(measure_links(settings), settings);
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

TEST(MeasureHostLinks, ThreeHostsOfTwoRanksHaveTheSameOnEveryRank) {
  LinkSettings settings = small_messages(2, false);
  settings.rounds = 1;
  std::vector<std::vector<planner::LinkTimes>> of_ranks(6);
  mesh::run_on_thread_ranks({.axes = {{"rank", 6}},
                             .spans = spans_between_hosts(6, 2),
                             .shared_memory = false,
                             .links = links_between_halves(6)},
                            [&](mesh::Mesh& mesh) {
                              of_ranks[static_cast<size_t>(mesh.rank())] = measure_host_links(mesh, settings);
                            });
  std::set<std::string> expected = {"send, 2 hosts, TCP"};
  for (const char* operation : {"all_gather", "exchange", "reduce_scatter"}) {
    for (const char* group : {", 3 hosts, TCP", ", 6 hosts, TCP"})
      expected.insert(std::string(operation) + group);
  }
  EXPECT_EQ(names_of(of_ranks[0], settings), expected) << "groups of 2 hosts do not divide 3";
  for (const planner::LinkTimes& link : of_ranks[0]) EXPECT_EQ(link.in_host, link.ranks == 6 ? 2 : 1);
  for (const auto& links : of_ranks) EXPECT_EQ(links, of_ranks[0]);
}

TEST(MeasureHostLinks, GroupsAreOfTwoHostsAndOfAll) {
  const std::vector<mesh::Span> spans = spans_between_hosts(16, 4);
  const std::set<mesh::Span> found(spans.begin(), spans.end());
  std::set<mesh::Span> expected;
  for (const bool activations : {false, true}) {
    for (const auto& [stride, size] :
         {std::pair<int64_t, int64_t>{4, 2}, {2, 4}, {1, 8}, {4, 4}, {2, 8}, {1, 16}})
      expected.insert({stride, size, activations});
  }
  EXPECT_EQ(found, expected);
}

TEST(MeasureLinks, OneRankHasNone) { EXPECT_TRUE(measure_links({.ranks = 1}).empty()); }

}  // namespace
}  // namespace tessera::profile
