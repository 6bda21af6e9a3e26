// SPDX-License-Identifier: Apache-2.0
// Who sends how many values where ranks hold unequal numbers of them, against counts by hand.
#include "tessera/mesh/row_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tessera::mesh {
namespace {

using Counts = std::vector<int64_t>;

struct Load {
  Counts sent, received;  // bytes, by rank
};

Load gather_load(const Counts& counts) {
  const Splits shares = gather_shares(counts);
  Load load;
  for (int64_t rank = 0; rank < static_cast<int64_t>(counts.size()); ++rank) {
    load.sent.push_back(sent_by(shares, rank) + sent_by(passed_on(shares), rank));
    load.received.push_back(received_by(shares, rank) + received_by(passed_on(shares), rank));
  }
  return load;
}

Load sum_load(const Counts& counts, int64_t partial_bytes, int64_t sum_bytes) {
  const Splits shares = sum_shares(counts, partial_bytes, sum_bytes);
  const Splits partials = partial_sums(shares), sums = the_other_way(shares);
  Load load;
  for (int64_t rank = 0; rank < static_cast<int64_t>(counts.size()); ++rank) {
    load.sent.push_back(partial_bytes * sent_by(partials, rank) + sum_bytes * sent_by(sums, rank));
    load.received.push_back(partial_bytes * received_by(partials, rank) +
                            sum_bytes * received_by(sums, rank));
  }
  return load;
}

/// One image of 12 values on 4 ranks. Every value leaves its rank once, three ranks pass on a third each.
TEST(RowShares, OneImageOnFourRanks) {
  const Load gather = gather_load({12, 0, 0, 0});
  EXPECT_EQ(gather.sent, (Counts{12, 8, 8, 8}));  // padded: 36 each; 3 images of 12 on 4 ranks: 27 each
  EXPECT_EQ(gather.received, (Counts{0, 12, 12, 12}));
  const Load sum = sum_load({12, 0, 0, 0}, 1, 1);
  EXPECT_EQ(sum.sent, (Counts{12, 12, 12, 12}));
  EXPECT_EQ(sum.received, (Counts{12, 12, 12, 12}));  // straight to its rank: 36
  // bf16 partial sums, float32 sums.
  const Load half = sum_load({12, 0, 0, 0}, 2, 4);
  EXPECT_EQ(half.received, (Counts{48, 24, 24, 24}));  // straight to its rank: 72
  EXPECT_EQ(half.sent, (Counts{24, 32, 32, 32}));
}

/// Of 20 values each. An even split of 100 values sends 75 from each rank.
TEST(RowShares, FiveImagesOnFourRanks) {
  const Load gather = gather_load({40, 20, 20, 20});
  for (const int64_t sent : gather.sent) EXPECT_NEAR(static_cast<double>(sent), 75, 1);
  EXPECT_EQ(gather.received, (Counts{60, 80, 80, 80}));
  const Load sum = sum_load({40, 20, 20, 20}, 1, 1);
  for (const int64_t received : sum.received) EXPECT_NEAR(static_cast<double>(received), 80, 2);
}

TEST(RowShares, EqualCountsAreNotMoved) {
  for (const int64_t ranks : {1, 2, 3, 4, 7}) {
    const Counts counts(static_cast<size_t>(ranks), 6);
    EXPECT_FALSE(are_moved(gather_shares(counts)));
    EXPECT_FALSE(are_moved(sum_shares(counts, 2, 4)));
    EXPECT_EQ(gather_load(counts).sent, Counts(static_cast<size_t>(ranks), 6 * (ranks - 1)));
    EXPECT_EQ(sum_load(counts, 1, 1).received, Counts(static_cast<size_t>(ranks), 6 * (ranks - 1)));
  }
}

/// Two ranks have nobody to help them, and need no second message.
TEST(RowShares, TwoRanksSendWhatTheyHold) {
  EXPECT_FALSE(are_moved(gather_shares(Counts{7, 1})));
  EXPECT_EQ(gather_load({7, 1}).sent, (Counts{7, 1}));
  EXPECT_FALSE(are_moved(sum_shares(Counts{7, 1}, 4, 4)));
  EXPECT_EQ(sum_load({7, 1}, 4, 4).received, (Counts{28, 4}));
}

/// What a rank must receive at least, and no load above what any distribution needs.
TEST(RowShares, NoRankSendsMoreThanItMust) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const size_t ranks = 2 + random() % 7;
    Counts counts;
    for (size_t i = 0; i < ranks; ++i) counts.push_back(random() % 3 == 0 ? 0 : random() % 5000);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const Load gather = gather_load(counts);
    for (size_t i = 0; i < ranks; ++i) EXPECT_EQ(gather.received[i], total - counts[i]);
    const auto peers = static_cast<int64_t>(ranks) - 1;
    const int64_t most = *std::ranges::max_element(counts), even = total * peers / (peers + 1);
    EXPECT_LE(*std::ranges::max_element(gather.sent), std::max(most, even) + peers + 1);
    const Load sum = sum_load(counts, 2, 4);
    // No more than straight to their ranks, and than by equal shares that then go to their ranks.
    const int64_t equal_shares = 2 * even + 4 * (most - total / (peers + 1));
    EXPECT_LE(*std::ranges::max_element(sum.received),
              std::min(2 * peers * most, equal_shares) + 4 * (peers + 1));
  }
}

}  // namespace
}  // namespace tessera::mesh
