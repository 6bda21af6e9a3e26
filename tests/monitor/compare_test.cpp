// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/monitor/metrics_row.h"
#include "tests/error_text.h"

namespace tessera::monitor {
namespace {

StepMetrics step_at(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.loss = loss;
  m.learning_rate = 0.1;
  m.seconds = loss * 100;
  return m;
}

/// A run's own file, evaluated every 10 steps; from `parts` on its loss is 1 % larger.
std::string csv_of(int64_t steps, int64_t parts) {
  std::string csv = csv_header();
  for (int64_t step = 1; step <= steps; ++step) {
    csv += csv_row(step_at(step, (step >= parts ? 1.01 : 1.0) / static_cast<double>(step)));
    if (step % 10 == 0) csv += csv_row(EvalMetrics{step, 0, 50, 90, step >= parts ? 0.7 : 0.5, 100, 1});
  }
  return csv;
}

const ColumnDifference& column(const Comparison& comparison, const std::string& kind,
                               const std::string& name) {
  for (const auto& one : comparison.columns) {
    if (one.kind == kind && one.column == name) return one;
  }
  throw std::runtime_error("no column " + name);
}

Comparison compare_text(const std::string& a, const std::string& b, double tolerance = 0) {
  return compare(parse_curves(a, "a"), parse_curves(b, "b"), tolerance);
}

TEST(Compare, EqualRunsNeverPart) {
  const Comparison same = compare_text(csv_of(40, 100), csv_of(40, 100));
  EXPECT_EQ(same.first_parting(), nullptr);
  EXPECT_EQ(same.rows, 44);
  EXPECT_EQ(column(same, "step", "loss").rows, 40);
  EXPECT_EQ(column(same, "eval", "loss").rows, 4);
  EXPECT_EQ(column(same, "step", "loss").largest.difference(), 0);
}

TEST(Compare, SaysWhereTwoRunsPart) {
  const Comparison found = compare_text(csv_of(40, 20), csv_of(35, 100));
  EXPECT_EQ(found.only_a, 6);  // steps 36 to 40 and an evaluation
  EXPECT_EQ(found.only_b, 0);
  ASSERT_NE(found.first_parting(), nullptr);
  EXPECT_EQ(found.first_parting()->kind, "step");  // before the evaluation of the same step
  EXPECT_EQ(found.first_parting()->column, "loss");
  EXPECT_EQ(found.first_parting()->parted->step, 20);
  EXPECT_NEAR(found.first_parting()->parted->relative(), 0.01 / 1.01, 1e-9);
  const Comparison tolerant = compare_text(csv_of(40, 20), csv_of(40, 100), 0.02);
  ASSERT_NE(tolerant.first_parting(), nullptr);  // the evaluation's loss is further off
  EXPECT_EQ(tolerant.first_parting()->kind, "eval");
  EXPECT_EQ(tolerant.first_parting()->parted->step, 20);
  EXPECT_FALSE(column(tolerant, "step", "loss").parted);
  EXPECT_EQ(compare_text(csv_of(40, 20), csv_of(40, 100), 0.5).first_parting(), nullptr);
}

TEST(Compare, SpeedsAreToldAndNotJudged) {
  const Comparison found =
      compare_text("step,loss,seconds\n1,2,10\n2,1,20\n", "step,seconds,loss\n1,11,2\n2,30,1\n");
  EXPECT_EQ(found.first_parting(), nullptr);
  const ColumnDifference& seconds = column(found, "step", "seconds");
  EXPECT_FALSE(seconds.judged);
  EXPECT_EQ(seconds.parted->step, 1);
  EXPECT_EQ(seconds.largest.step, 2);
  EXPECT_EQ(seconds.largest.difference(), 10);
}

TEST(Compare, WhatIsNoNumberIsEqualToItselfOnly) {
  EXPECT_EQ(compare_text("step,loss\n1,nan\n2,inf\n", "step,loss\n1,nan\n2,inf\n").first_parting(), nullptr);
  const Comparison found = compare_text("step,loss\n1,nan\n", "step,loss\n1,2\n", 1e9);
  ASSERT_NE(found.first_parting(), nullptr);
  EXPECT_TRUE(std::isinf(found.first_parting()->parted->relative()));
  EXPECT_NE(compare_text("step,loss\n1,inf\n", "step,loss\n1,-inf\n").first_parting(), nullptr);
}

TEST(Compare, OfRowsThatRepeatTheLastCounts) {
  const Curves curves = parse_curves("kind,step,loss\r\nstep,1,5\r\n\r\nstep,1,6\r\neval,1,\r\n", "a");
  EXPECT_EQ(curves.rows.size(), 2U);
  EXPECT_EQ(curves.rows.at({"step", 1}).at(0), 6.0);
  EXPECT_EQ(curves.rows.at({"eval", 1}).at(0), std::nullopt);
}

std::string error_of(const std::string& csv) {
  return error_text([&] { parse_curves(csv, "curve.csv"); });
}

TEST(Compare, WhatIsNoTableIsNamed) {
  EXPECT_EQ(error_of("epoch,loss\n1,2\n"),
            "[monitor.compare] curve.csv has no column \"step\": its first line is \"epoch,loss\": expected "
            "the folder of a run, or a CSV file like its metrics.csv");
  EXPECT_EQ(error_of("step,loss\n1,2\n2,1,7\n"),
            "[monitor.compare] curve.csv has 3 fields in line 3: expected 2 fields, as in the first line");
  EXPECT_EQ(error_of("step,loss\n1,high\n"),
            "[monitor.compare] curve.csv has \"high\" in line 2: expected a number");
  EXPECT_EQ(error_of("step,loss\n1.5,1\n"),
            "[monitor.compare] curve.csv has \"1.5\" in line 2: expected a number");
  EXPECT_NE(error_of("").find("curve.csv has no column \"step\": its first line is \"\""), std::string::npos);
}

}  // namespace
}  // namespace tessera::monitor
