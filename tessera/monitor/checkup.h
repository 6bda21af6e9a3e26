// SPDX-License-Identifier: Apache-2.0
// Will a run fit its machine? What `tessera doctor` says, from what it measured. Pure. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::monitor {

/// What a run needs on this host, and what there is.
struct CheckupFacts {
  int64_t world = 1, local_ranks = 1;  // ranks of the run, and those of them on this host
  double memory_per_rank = 0;          // predicted, bytes
  double memory_free = 0;              // bytes this process may still take: cgroups respected
  double checkpoint_bytes = 0;         // of one checkpoint, what this host writes of it
  int64_t checkpoints = 0;             // complete at once, at most, with the one being written
  double disk_free = 0;                // bytes, in `disk_folder`
  std::string disk_folder;             // where checkpoints will lie, or the nearest folder that is there
  int64_t cores = 1;                   // affinity and cgroups respected
  int64_t threads_per_rank = 1, workers_per_rank = 1;  // that compute, that decode
  int64_t files_needed = 0, files_limit = 0;           // of one rank; the limit it may raise itself to
  double tflops = 0;           // of the matrix multiplications all ranks of this host make together
  double flops_per_image = 0;  // of forward and backward
  double images_decoded = 0;   // a second, by all workers of this host
  std::string data;            // what was decoded
  std::string link;            // how ranks talk: "shared memory", "TCP"
  double gather_rate = 0, reduce_rate = 0;       // bytes/s that a rank sends, measured; 0 for one rank
  double gathered_bytes = 0, reduced_bytes = 0;  // that it sends in a step
  int64_t images_per_step = 0;                   // of a rank
};

/// A training step rarely reaches a larger share of the rate of its matrix multiplications.
inline constexpr double kUsualShareOfPeak = 0.6;

struct Finding {
  enum class Level { kOk, kWarn, kFail } level = Level::kOk;
  std::string subject;  // "memory", "disk", "cores", "open files", "data", "link"
  std::string found;
  std::string advice;  // what to do; empty where all is well
};

/// One for each subject, in a fixed order.
std::vector<Finding> checkup(const CheckupFacts& facts);

/// "warn  data        ...: ..." with the advice in parentheses.
std::string to_line(const Finding& finding);

}  // namespace tessera::monitor
