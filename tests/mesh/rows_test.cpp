// SPDX-License-Identifier: Apache-2.0
// Rows that ranks exchange, in even and uneven numbers, against sums by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/mesh/row_shares.h"
#include "tests/mesh/ranks.h"

namespace tessera::mesh {
namespace {

using Counts = std::vector<int64_t>;

/// Row `row` of the whole, as rank `rank` gives it: [2, 3].
at::Tensor row_of(int64_t rank, int64_t row, at::ScalarType dtype) {
  return (at::arange(6, at::kDouble).view({1, 2, 3}) + static_cast<double>(10 * row + 1000 * rank)).to(dtype);
}

at::Tensor rows_of(int64_t rank, int64_t first, int64_t count, at::ScalarType dtype) {
  std::vector<at::Tensor> rows = {at::empty({0, 2, 3}, dtype)};
  for (int64_t i = 0; i < count; ++i) rows.push_back(row_of(rank, first + i, dtype));
  return at::cat(rows);
}

/// Bytes that a rank sends for a gather and for a sum.
struct Sent {
  int64_t gather = 0, sum = 0;
};

/// Equal numbers of rows, or padding of a quarter at most.
bool is_padded(const Counts& counts) {
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  return static_cast<double>(std::ranges::max(counts)) * static_cast<double>(counts.size()) <= 1.25 * total;
}

/// By rank, for rows of `width` values. (Nearly) equal numbers of rows: to each other rank as many as the
/// fullest one has. Else the shares say who sends what.
std::vector<Sent> sent_in_all(const Counts& counts, int64_t width, at::ScalarType dtype) {
  const auto ranks = static_cast<int64_t>(counts.size());
  const auto bytes = static_cast<int64_t>(at::elementSize(dtype)),
             of_sum = static_cast<int64_t>(at::elementSize(dtype == at::kDouble ? at::kDouble : at::kFloat));
  Counts values;
  for (const int64_t count : counts) values.push_back(count * width);
  const Splits gathered = gather_shares(values), summed = sum_shares(values, bytes, of_sum);
  std::vector<Sent> sent;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (is_padded(counts)) {
      const int64_t padded = (ranks - 1) * std::ranges::max(counts) * width * bytes;
      sent.push_back({padded, padded});
      continue;
    }
    sent.push_back(
        {(sent_by(gathered, rank) + sent_by(passed_on(gathered), rank)) * bytes,
         sent_by(partial_sums(summed), rank) * bytes + sent_by(the_other_way(summed), rank) * of_sum});
  }
  return sent;
}

void expect_rows(const Counts& counts, at::ScalarType dtype, bool shared_memory) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto ranks = static_cast<int64_t>(counts.size());
  testing::run_ranks(
      {{"tensor", ranks}},
      [&](Mesh& mesh) {
        Group& group = mesh.group("tensor");
        const auto rank = static_cast<size_t>(group.rank());
        const int64_t first = std::accumulate(counts.begin(), counts.begin() + group.rank(), int64_t{0});
        // A gather brings every row as its owner gave it.
        const at::Tensor all =
            group.gather_rows(rows_of(0, first, counts[rank], dtype), counts, "rows").wait();
        EXPECT_TRUE(at::equal(all, rows_of(0, 0, total, dtype)));
        // So does a gather to one rank, to that rank alone.
        const int64_t root = ranks - 1;
        const at::Tensor on_root =
            group.gather_rows_to(root, rows_of(0, first, counts[rank], dtype), counts, "rows");
        EXPECT_TRUE(at::equal(on_root, rows_of(0, 0, group.rank() == root ? total : 0, dtype)));
        // A sum brings each rank its rows: of ranks 0 to n - 1, which add 1000 rank each.
        const at::Tensor sum = group.sum_rows(rows_of(group.rank(), 0, total, dtype), counts, "sums").wait();
        const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
        at::Tensor expected = at::zeros({counts[rank], 2, 3}, wide);
        for (int64_t i = 0; i < ranks; ++i) expected += rows_of(i, first, counts[rank], dtype).to(wide);
        EXPECT_TRUE(at::equal(sum, expected)) << sum << expected;
        EXPECT_EQ(sum.scalar_type(), wide);
        if (ranks == 1 || total == 0) return;
        const Sent sent = sent_in_all(counts, 6, dtype)[rank];
        EXPECT_EQ(group.traffic().at("gather_rows").bytes_sent, sent.gather);
        EXPECT_EQ(group.traffic().at("sum_rows").bytes_sent, sent.sum);
        const int64_t own = group.rank() == root ? 0 : counts[rank] * 6;
        EXPECT_EQ(group.traffic().at("gather_rows_to").bytes_sent,
                  own * static_cast<int64_t>(at::elementSize(dtype)));
        if (is_padded(counts)) {
          EXPECT_EQ(group.traffic().at("gather_rows").calls, 1);
          EXPECT_EQ(group.traffic().at("sum_rows").calls, 1);
        }
      },
      std::chrono::milliseconds(30'000), shared_memory);
}

TEST(Rows, EvenAndUneven) {
  for (const Counts& counts : {Counts{2, 2},
                               {3, 1},
                               {0, 2},
                               {1, 1, 1},
                               {2, 1, 0},
                               {0, 0},
                               {4},
                               {0, 0, 0, 1},
                               {1, 0, 0, 0},
                               {2, 1, 1, 1},
                               {0, 3, 0, 9},
                               {5, 0, 1, 0, 7},
                               {5, 4, 4, 4},
                               {3, 4}}) {
    SCOPED_TRACE(at::tensor(counts).toString());
    for (const bool shared_memory : {true, false}) expect_rows(counts, at::kFloat, shared_memory);
  }
}

TEST(Rows, OfOtherDtypes) {
  expect_rows({2, 1}, at::kDouble, true);
  expect_rows({2, 1}, at::kBFloat16, true);
  expect_rows({2, 2}, at::kBFloat16, false);
  for (const bool shared_memory : {true, false}) {
    expect_rows({1, 0, 0, 0}, at::kBFloat16, shared_memory);
    expect_rows({2, 1, 1, 1}, at::kBFloat16, shared_memory);
    expect_rows({1, 3, 0, 2}, at::kDouble, shared_memory);
  }
}

TEST(Rows, RefusesOtherCounts) {
  testing::run_ranks({{"tensor", 1}}, [](Mesh& mesh) {
    EXPECT_THROW(mesh.group("tensor").gather_rows(at::ones({2, 3}), Counts{1}, "rows"), InternalError);
    EXPECT_THROW(mesh.group("tensor").sum_rows(at::ones({2, 3}), Counts{1}, "rows"), InternalError);
  });
}

/// A caller may change the result in place.
TEST(Rows, ResultsOfOneRankShareNoMemoryWithItsInput) {
  testing::run_ranks({{"tensor", 1}}, [](Mesh& mesh) {
    const at::Tensor mine = at::ones({2, 3});
    for (const at::Tensor& result : {mesh.group("tensor").gather_rows(mine, Counts{2}, "rows").wait(),
                                     mesh.group("tensor").sum_rows(mine, Counts{2}, "rows").wait()}) {
      at::Tensor(result).zero_();
      EXPECT_TRUE(at::equal(mine, at::ones({2, 3})));
    }
  });
}

/// Rank order decides a sum's last bits, whichever rank adds it up.
TEST(Rows, UnequalSumsAreThoseInRankOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto partial = [dtype](int64_t rank) {
      return at::arange(3 * 1000, at::kDouble)
          .add_(static_cast<double>(17 * rank))
          .sin_()
          .mul_(rank == 1 ? 1e4 : 1)
          .view({3, 1000})
          .to(dtype);
    };
    at::Tensor expected = partial(0).to(at::kFloat);
    for (int64_t rank = 1; rank < 4; ++rank) expected.add_(partial(rank).to(at::kFloat));
    testing::run_ranks({{"tensor", 4}}, [&](Mesh& mesh) {
      Group& group = mesh.group("tensor");
      const Counts counts = {0, 0, 3, 0};
      const at::Tensor sum = group.sum_rows(partial(group.rank()), counts, "sums").wait();
      EXPECT_TRUE(at::equal(sum, group.rank() == 2 ? expected : expected.narrow(0, 0, 0)));
    });
  }
}

/// Slices of many messages through shared memory, which has 16 slots of 512 KiB.
TEST(Rows, LargeUnequalOnes) {
  for (const bool shared_memory : {true, false}) {
    testing::run_ranks(
        {{"tensor", 3}},
        [&](Mesh& mesh) {
          Group& group = mesh.group("tensor");
          const Counts counts = {0, 3, 1};
          const at::Tensor rows = at::arange(4'000'004, at::kFloat).view({4, 1'000'001});
          const int64_t first = group.rank() == 2 ? 3 : 0, own = counts[static_cast<size_t>(group.rank())];
          PendingRows gather = group.gather_rows(rows.narrow(0, first, own), counts, "rows");
          PendingRows sum = group.sum_rows(rows * static_cast<double>(group.rank() + 1), counts, "rows");
          EXPECT_TRUE(gather.wait().equal(rows));
          const at::Tensor expected = rows + rows * 2 + rows * 3;
          EXPECT_TRUE(sum.wait().equal(expected.narrow(0, first, own)));
        },
        std::chrono::milliseconds(30'000), shared_memory);
  }
}

/// Several exchanges under way: second messages start in one order on all ranks, beside those of equal
/// counts.
TEST(Rows, ManyUnderWayKeepTheirOrder) {
  for (const bool shared_memory : {true, false}) {
    testing::run_ranks(
        {{"tensor", 3}},
        [&](Mesh& mesh) {
          Group& group = mesh.group("tensor");
          const auto rank = static_cast<size_t>(group.rank());
          const std::vector<Counts> counts = {{2, 0, 1}, {1, 1, 1}, {0, 0, 4}, {3, 3, 0}};
          std::vector<PendingRows> gathers, sums;
          for (const Counts& each : counts) {
            const int64_t first = std::accumulate(each.begin(), each.begin() + group.rank(), int64_t{0});
            const int64_t total = std::accumulate(each.begin(), each.end(), int64_t{0});
            gathers.push_back(group.gather_rows(rows_of(0, first, each[rank], at::kFloat), each, "rows"));
            sums.push_back(group.sum_rows(rows_of(group.rank(), 0, total, at::kFloat), each, "sums"));
            if (sums.size() > 1) sums[sums.size() - 2].start_second();
          }
          for (size_t i = counts.size(); i-- > 0;) {
            const int64_t total = std::accumulate(counts[i].begin(), counts[i].end(), int64_t{0});
            EXPECT_TRUE(at::equal(gathers[i].wait(), rows_of(0, 0, total, at::kFloat)));
            const int64_t first =
                std::accumulate(counts[i].begin(), counts[i].begin() + group.rank(), int64_t{0});
            at::Tensor expected = at::zeros({counts[i][rank], 2, 3});
            for (int64_t of = 0; of < 3; ++of) expected += rows_of(of, first, counts[i][rank], at::kFloat);
            EXPECT_TRUE(at::equal(sums[i].wait(), expected));
          }
        },
        std::chrono::milliseconds(30'000), shared_memory);
  }
}

/// A rank that stops between the two messages of an exchange ends the wait of the other ranks.
TEST(Rows, AFailureBetweenItsTwoMessagesNamesTheLayer) {
  for (const bool shared_memory : {true, false}) {
    std::atomic<int> named = 0;
    try {
      testing::run_ranks(
          {{"tensor", 3}},
          [&](Mesh& mesh) {
            Group& group = mesh.group("tensor");
            const Counts counts = {4, 0, 0};
            PendingRows rows =
                group.gather_rows(rows_of(0, 0, counts[static_cast<size_t>(group.rank())], at::kFloat),
                                  counts, "blocks.3 attention");
            if (group.rank() == 1) throw std::runtime_error("this rank stops");
            try {
              rows.wait();
            } catch (const CommError& error) {
              EXPECT_NE(std::string(error.what()).find("gather_rows blocks.3 attention"), std::string::npos)
                  << error.what();
              ++named;
              throw;
            }
          },
          std::chrono::milliseconds(2'000), shared_memory);
      ADD_FAILURE() << "no rank has failed";
    } catch (const std::exception&) {
    }
    EXPECT_GE(named, 1);
  }
}

/// A pretended rank sees its own rows as those of all.
TEST(Rows, Pretended) {
  const auto mesh = Mesh::pretend(1, {{"tensor", 3}});
  Group& group = mesh->group("tensor");
  const at::Tensor all = group.gather_rows(at::ones({2, 3}), Counts{2, 2, 2}, "rows").wait();
  EXPECT_TRUE(at::equal(all, at::ones({6, 3})));
  const at::Tensor sum = group.sum_rows(at::ones({6, 3}), Counts{2, 2, 2}, "rows").wait();
  EXPECT_TRUE(at::equal(sum, at::full({2, 3}, 3.0F)));
  const Counts counts = {2, 1, 0};
  EXPECT_TRUE(at::equal(group.gather_rows(at::ones({1, 3}), counts, "rows").wait(), at::ones({3, 3})));
  EXPECT_TRUE(at::equal(group.sum_rows(at::ones({3, 3}), counts, "rows").wait(), at::full({1, 3}, 3.0F)));
}

}  // namespace
}  // namespace tessera::mesh
