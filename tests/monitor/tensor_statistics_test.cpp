// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/tensor_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/file.h"

namespace tessera::monitor {
namespace {

const std::vector<TensorStatistics> kTwo = {{"activations", "stem", 0.25, 0.5, 2, 0},
                                            {"gradients", "head.weight", 0, 0.125, 1, 3}};
constexpr const char* kRow =
    R"({"step":10,"activations":{"stem":{"mean":0.25,"rms":0.5,"largest":2.0,"not_finite":0}},)"
    R"("gradients":{"head.weight":{"mean":0.0,"rms":0.125,"largest":1.0,"not_finite":3}}})"
    "\n";

TEST(TensorStatistics, ARowHoldsEveryTensor) {
  EXPECT_EQ(json_row(10, kTwo), kRow);
  const formats::EventScalars expected = {{"activations/stem/rms", 0.5},
                                          {"activations/stem/largest", 2},
                                          {"gradients/head.weight/rms", 0.125},
                                          {"gradients/head.weight/largest", 1}};
  EXPECT_EQ(scalars(kTwo), expected);
}

TEST(TensorStatistics, AFileIsReadBack) {
  const auto steps = parse_statistics(json_row(10, kTwo) + "{\"step\": 11\n\n[]\n" +
                                      R"({"step":20,"kind":3,"gradients":{"x":{"rms":null},"y":4}})");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].step, 10);
  EXPECT_EQ(json_row(10, steps[0].tensors), kRow);
  ASSERT_EQ(steps[1].tensors.size(), 1U);
  EXPECT_EQ(steps[1].tensors[0].name, "x");
  EXPECT_TRUE(std::isnan(steps[1].tensors[0].rms));
  EXPECT_EQ(steps[1].tensors[0].not_finite, 0);
  const TemporaryFolder folder("tessera-statistics");
  EXPECT_TRUE(read_statistics(folder.path() / "statistics.jsonl").empty());
  write_file_atomic(folder.path() / "statistics.jsonl", kRow);
  EXPECT_EQ(read_statistics(folder.path() / "statistics.jsonl").size(), 1U);
}

TEST(TensorStatistics, AResumedRunKeepsTheRowsUpToItsStep) {
  const std::string one = json_row(1, kTwo), two = json_row(2, kTwo), three = json_row(3, kTwo);
  EXPECT_EQ(rows_until(one + two + three, 2), one + two);
  EXPECT_EQ(rows_until(one + two.substr(0, 20) + "\n[]\n{\"step\":\"x\"}\n\n" + three, 3), one + three);
  EXPECT_EQ(rows_until(one + two.substr(0, 20), 3), one) << "a crash may cut the last row";
  EXPECT_EQ(rows_until("", 3), "");
}

}  // namespace
}  // namespace tessera::monitor
