// SPDX-License-Identifier: Apache-2.0
// A training program of one's own among its ranks: who the others are, and an end with one clear line.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/device_kind.h"

namespace tessera::library {

using recipe::DeviceKind;

/// Stages of a pipeline (library/pipeline.h): stage s is ranks s R to (s + 1) R - 1, R = ranks / stages.
struct PipelineOptions {
  int64_t stages = 1;  // must divide the number of ranks
  int64_t parts = 1;   // segments that each rank holds; 2 or more with Schedule::kInterleaved, else 1
  plan::Schedule schedule = plan::Schedule::k1F1B;
};

struct ConnectOptions {
  /// Named axes of the ranks, the last one fastest. One of them may have size 0: what is left of the world.
  std::vector<mesh::Axis> axes = {{"shard", 0}};
  std::chrono::milliseconds timeout{600'000};  // of every collective
  bool shared_memory = true;                   // between ranks of one host; false: TCP
  /// Ranks whose fingerprints differ are told so instead of training something else together.
  std::string fingerprint = {};
  /// LibTorch's threads in this process; 0: OMP_NUM_THREADS, else the
  /// host's cores divided by its ranks.
  int64_t threads = 0;
  PipelineOptions pipeline = {};  // stages, whose groups are made beside those of the axes
  /// Where this rank computes: the CPU, or the GPU with the rank's number on its host, which becomes the
  /// calling thread's current device. kAuto: a GPU where one answers. A rank on a GPU is a process.
  DeviceKind device = DeviceKind::kCpu;
  /// Lets more ranks of a host compute on GPUs than it has. Their tensors travel through the host's memory
  /// instead of NCCL: for tests.
  bool share_gpu = false;
};

/// Meets the ranks that `tessera launch`, torchrun, mpirun or srun started (launch::ranks_from_environment;
/// alone where nobody did) and sets LibTorch's threads. Collective. Errors: UserError (axes or
/// stages that do not fit the world, another build, pipeline, fingerprint or kind of device; a GPU that is
/// asked for and not there, or fewer of them than ranks on a host), CommError (a rank that does not come, by
/// number).
std::unique_ptr<mesh::Mesh> connect(const ConnectOptions& options = {});

/// The device that connect() chose for this process: for net->to(library::device()) before wrapping. The CPU
/// before connect().
at::Device device();

/// For main(): connects, runs `body`, returns its exit code. A failure becomes one line on stderr and the
/// exit code 2 (wrong input), 3 (another rank or the network; ranks that gave no sign of life are named) or 4
/// (any other exception), at once: no destructor waits for ranks that are gone.
int run(const std::function<int(mesh::Mesh&)>& body, const ConnectOptions& options = {});

}  // namespace tessera::library
