// SPDX-License-Identifier: Apache-2.0
// Training steps as CUDA graphs (run.cuda_graphs): work that is recorded with the device's DeviceGraph when
// it has come a few times, compared with eager execution, and replayed from then on.
//
// Note [Recordings]: each kind of pass has a recording of its own: shapes, samples of the step (they divide
// the loss), first or last micro-batch of the step, labels mixed or not. The update at the step's end is one
// more. What changes from step to step is copied to where the recording reads it: images, a teacher's logits,
// what the host makes for a pass (device/host_values.h), settings of the update (device_update.h). All
// recordings share the memory of intermediate tensors; none runs beside another.
//
// Note [Recordings on several ranks]: a replay starts the same collectives in the same order as the eager
// pass, so one rank may replay what another computes eagerly. Recording needs one pass more than that, for
// the comparison: all ranks record or none. They vote, over the host's group, in steps that all ranks count
// alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/device/graph.h"
#include "tessera/eager/device_update.h"
#include "tessera/eager/pass.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

/// Where a replay differs from eager execution, or recording fails, on any rank, a warning says so, the eager
/// results count, and nothing is recorded or replayed any more, on any rank. Memory of the units' gradients
/// stays from the first recording on; while one is made there is a copy of what it writes. One thread, whose
/// current stream must not be the device's default one.
class RecordedStep {
 public:
  static constexpr int64_t kEagerBefore = 3;    // so that libraries have made handles and found algorithms
  static constexpr size_t kMostRecordings = 8;  // of passes; the least recently used one goes

  /// `make`: of the state's device. `with_update`: the update is recorded as well.
  RecordedStep(device::MakeDeviceGraph make, bool with_update);
  ~RecordedStep();
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  /// run_pass(). What it returns is written over by the next call. Collective.
  at::Tensor run(TrainState& state, const Pass& pass, mesh::Mesh& mesh);
  /// state.device_update->queue(). Collective.
  void update(TrainState& state, mesh::Mesh& mesh);

  int64_t replays() const { return replays_; }  // of passes
  int64_t update_replays() const { return update_replays_; }
  size_t recordings() const { return recordings_.size(); }  // of passes
  /// Why nothing is recorded any more; empty: nothing is wrong.
  const std::string& fault() const { return fault_; }

 private:
  struct Recording;
  class Results;
  using Kind = std::vector<int64_t>;
  static Kind kind_of(const Pass& pass);

  Recording* find(const Kind& kind);
  bool is_due(const Pass& pass, const Kind& kind, mesh::Mesh& mesh) const;
  at::Tensor record(TrainState& state, const Pass& pass, Kind kind, mesh::Mesh& mesh);
  at::Tensor replay(TrainState& state, const Pass& pass, Recording& recording);
  void record_update(TrainState& state, mesh::Mesh& mesh);
  /// Adds a recording without a graph, with memory for the pass's input.
  void make_room(const Pass& pass, const Kind& kind);
  std::unique_ptr<device::DeviceGraph> make_graph() const;
  /// Says fault_; nothing of any recording stays.
  void give_up(TrainState& state);

  const device::MakeDeviceGraph make_;
  const bool with_update_;
  std::vector<std::shared_ptr<Recording>> recordings_;
  std::map<Kind, int64_t> eager_;  // passes of a kind without a recording so far
  std::unique_ptr<device::DeviceGraph> update_graph_;
  int64_t steps_ = 0, updates_ = 0;  // begun by this object
  int64_t replays_ = 0, update_replays_ = 0;
  std::string fault_;
};

/// Why passes of such a run cannot be recorded; empty: they can.
std::string why_not_recorded(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device);
/// "replayed as CUDA graphs, ...": what of a step is, for the log. Requires: `graphs` is kPass or kStep.
std::string recorded_text(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device,
                          recipe::CudaGraphs graphs);
/// The recordings of a state; null where `graphs` asks for none (kAuto is not decided yet) or they cannot be.
std::shared_ptr<RecordedStep> make_recorded_step(const TrainState& state, recipe::CudaGraphs graphs);

}  // namespace tessera::eager
