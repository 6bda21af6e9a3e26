// SPDX-License-Identifier: Apache-2.0
// Rows that ranks exchange, in even and uneven numbers, against sums by hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

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
        // A sum brings each rank its rows: of ranks 0 to n - 1, which add 1000 rank each.
        const at::Tensor sum = group.sum_rows(rows_of(group.rank(), 0, total, dtype), counts, "sums").wait();
        const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
        at::Tensor expected = at::zeros({counts[rank], 2, 3}, wide);
        for (int64_t i = 0; i < ranks; ++i) expected += rows_of(i, first, counts[rank], dtype).to(wide);
        EXPECT_TRUE(at::equal(sum, expected)) << sum << expected;
        EXPECT_EQ(sum.scalar_type(), wide);
        // Every rank sends as many rows as the fullest one has, to each other.
        const int64_t most = *std::ranges::max_element(counts);
        const int64_t bytes = (ranks - 1) * most * 6 * static_cast<int64_t>(at::elementSize(dtype));
        if (bytes == 0) return;
        EXPECT_EQ(group.traffic().at("gather_rows").bytes_sent, bytes);
        EXPECT_EQ(group.traffic().at("sum_rows").bytes_sent, bytes);
      },
      std::chrono::milliseconds(30'000), shared_memory);
}

TEST(Rows, EvenAndUneven) {
  for (const Counts& counts :
       {Counts{2, 2}, {3, 1}, {0, 2}, {1, 1, 1}, {2, 1, 0}, {0, 0}, {4}, {0, 0, 0, 1}}) {
    SCOPED_TRACE(at::tensor(counts).toString());
    for (const bool shared_memory : {true, false}) expect_rows(counts, at::kFloat, shared_memory);
  }
}

TEST(Rows, OfOtherDtypes) {
  expect_rows({2, 1}, at::kDouble, true);
  expect_rows({2, 1}, at::kBFloat16, true);
  expect_rows({2, 2}, at::kBFloat16, false);
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

/// A pretended rank sees its own rows as those of all.
TEST(Rows, Pretended) {
  const auto mesh = Mesh::pretend(1, {{"tensor", 3}});
  Group& group = mesh->group("tensor");
  const at::Tensor all = group.gather_rows(at::ones({2, 3}), Counts{2, 2, 2}, "rows").wait();
  EXPECT_TRUE(at::equal(all, at::ones({6, 3})));
  const at::Tensor sum = group.sum_rows(at::ones({6, 3}), Counts{2, 2, 2}, "rows").wait();
  EXPECT_TRUE(at::equal(sum, at::full({2, 3}, 3.0F)));
}

}  // namespace
}  // namespace tessera::mesh
