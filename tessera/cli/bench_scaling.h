// SPDX-License-Identifier: Apache-2.0
// `tessera bench scaling`: the step on growing numbers of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

struct ScalingOptions {
  std::vector<int64_t> ranks = {1, 2};
  std::vector<int64_t> pipeline = {1};  // stages of each row,
  std::vector<int64_t> tensor = {1};    // and its tensor-parallel degree: both together divide its ranks
  bool weak = false,
       strong = false;  // strong: `batch` is the global one; else (both false, or weak) each rank's
  std::string model = "Ti/16";
  int64_t batch = 8, rounds = 5;
  std::vector<std::string> sets;
  bool json = false;
};

/// Errors: UserError on numbers that make no sense.
void check(const ScalingOptions& options);

/// Runs `tessera bench step` once for each number of stages, tensor degree and number of ranks, and prints a
/// row of each.
/// Returns the exit code. Requires: check(options). A failed run's code is handed on.
int bench_scaling(const ScalingOptions& options);

}  // namespace tessera::cli
