// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/sums_by_name.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/mesh/ranks.h"

namespace tessera::optim {
namespace {

// Rank 0 holds "a" twice, rank 1 "b" and "a", rank 2 "c".
TEST(SumsByName, RanksNeedNotHoldTheSameTensors) {
  const std::vector<std::vector<SummedTensor>> held = {
      {{"a", 2}, {"a", 2}}, {{"b", 1}, {"a", 2}}, {{"c", 3}}};
  testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
    const auto rank = static_cast<size_t>(mesh.rank());
    const SumsByName sums(held[rank], mesh, "test");
    at::Tensor values = sums.zeros();
    EXPECT_EQ(values.numel(), 2 + 1 + 3);
    auto* at = values.data_ptr<double>();
    for (const SummedTensor& one : held[rank]) {
      for (int64_t i = 0; i < one.values; ++i)
        at[sums.begin(one.name) + i] +=
            std::pow(10.0, static_cast<double>(rank)) * static_cast<double>(i + 1);
    }
    sums.sum(values, mesh);
    const auto value = [&](const char* name, int64_t i) {
      return values[sums.begin(name) + i].item<double>();
    };
    EXPECT_EQ(value("a", 0), 12);
    EXPECT_EQ(value("a", 1), 24);
    EXPECT_EQ(value("b", 0), 10);
    EXPECT_EQ(value("c", 2), 300);
    EXPECT_EQ(sums.is_lowest_holder("a"), rank == 0);
    EXPECT_EQ(sums.is_lowest_holder("b"), rank == 1);
    EXPECT_EQ(sums.is_lowest_holder("c"), rank == 2);
  });
}

}  // namespace
}  // namespace tessera::optim
