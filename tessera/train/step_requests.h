// SPDX-License-Identifier: Apache-2.0
// Steps that another program asks for, so that it can measure several layouts by turns (`tessera bench step
// --requests`).
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "tessera/base/process_memory.h"
#include "tessera/mesh/mesh.h"

namespace tessera::train {

/// Numbers of steps, one in each line of a file or named pipe. One thread.
class StepRequests {
 public:
  /// Waits until a program opens the pipe for writing. Errors: UserError where the file cannot be read.
  explicit StepRequests(std::string file);
  /// Waits for a line; 0 at the end of the file. Errors: UserError unless the line is a number from 1 to
  /// 1,000,000.
  int64_t next();

 private:
  std::string name_;
  std::ifstream lines_;
  int64_t line_ = 0;
};

/// Takes the steps that the lines of `file` ask for, until it ends. Rank 0 reads the file and prints a line
/// of JSON for each request: {"step_seconds": [s, ...], "slowed": false}, its time of each step, one after
/// another, and whether something else slowed a core when they began or ended (profile/quiet_cores.h; left
/// out where ranks share cores); and at the end the memory of each rank: {"ranks":
/// [{"training_memory_bytes": n, "peak_rss_bytes": n}, ...]}, where `before` was taken before the model was
/// built. Collective. Errors: as StepRequests.
void serve_step_requests(const std::string& file, const std::function<void()>& step,
                         const MemoryBefore& before, mesh::Mesh& mesh);

}  // namespace tessera::train
