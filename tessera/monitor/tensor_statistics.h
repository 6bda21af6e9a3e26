// SPDX-License-Identifier: Apache-2.0
// What single tensors of a step look like, and how that is written. No LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/formats/event_file.h"

namespace tessera::monitor {

/// Over all finite numbers of one tensor, of all ranks together.
struct TensorStatistics {
  std::string kind;  // "activations": what comes out of a unit, "gradients": of a parameter, before clipping
  std::string name;  // "blocks.3", "blocks.3.attn.qkv.weight"
  double mean = 0, rms = 0, largest = 0;  // largest: of the magnitudes
  int64_t not_finite = 0;                 // numbers left out
};

/// What one line of statistics.jsonl tells.
struct StepTensors {
  int64_t step = 0;
  std::vector<TensorStatistics> tensors;  // in the order of the line, which is the forward one
};

/// One line: {"step": N, "activations": {"blocks.3": {"mean": .., "rms": .., "largest": .., "not_finite":
/// ..}}, "gradients": {...}}.
std::string json_row(int64_t step, const std::vector<TensorStatistics>& statistics);
/// Scalars "activations/blocks.3/rms" and ".../largest" of each tensor.
formats::EventScalars scalars(const std::vector<TensorStatistics>& statistics);
/// The lines of a file, or none where there is no file. What is no such line is left out; a number that is
/// null is NaN. Errors: UserError where the file cannot be read.
std::vector<StepTensors> read_statistics(const std::filesystem::path& path);
std::vector<StepTensors> parse_statistics(std::string_view lines);
/// The lines whose step is at most `step`; what is no such line is left out.
std::string rows_until(std::string_view lines, int64_t step);

}  // namespace tessera::monitor
