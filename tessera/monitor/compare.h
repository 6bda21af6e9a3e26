// SPDX-License-Identifier: Apache-2.0
// Where two runs part: their rows of metrics.csv, side by side. Pure. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::monitor {

/// Rows of a metrics.csv, or of any CSV with a column "step".
struct Curves {
  std::vector<std::string> columns;  // of numbers, in the file's order, without kind and step
  /// By kind ("step", "eval"; "step" where the file has no such column) and step: a number for each column,
  /// nothing where the field is empty. Of rows that repeat a step the last counts.
  std::map<std::pair<std::string, int64_t>, std::vector<std::optional<double>>> rows;
};

/// Errors: UserError with `name` and the line of what is no such table.
Curves parse_curves(std::string_view csv, const std::string& name);

/// Two values of a column in one row of both.
struct Pair {
  int64_t step = 0;
  double a = 0, b = 0;
  double difference() const;  // |a - b|; 0 where both are the same infinity or no numbers
  double relative() const;    // to the larger of |a| and |b|; infinite where only one is finite
};

struct ColumnDifference {
  std::string kind, column;
  bool judged = true;          // of speeds, waits, memory and times no two runs are alike
  int64_t rows = 0;            // that both have
  Pair largest;                // by relative()
  std::optional<Pair> parted;  // the first with relative() above the tolerance
};

struct Comparison {
  int64_t rows = 0, only_a = 0, only_b = 0;
  std::vector<ColumnDifference> columns;  // those that share a row
  /// The earliest parting of a judged column; of one step training comes before evaluation.
  const ColumnDifference* first_parting() const;
};

/// `tolerance`: relative difference that still counts as the same; 0: every digit.
Comparison compare(const Curves& a, const Curves& b, double tolerance);

}  // namespace tessera::monitor
