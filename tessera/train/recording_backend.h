// SPDX-License-Identifier: Apache-2.0
// LibTorch's back end, with a recording of what each training step computes on this rank.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/eager/backend.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/train/step_recording.h"

namespace tessera::train {

/// Places in a step at which a test may change the state.
enum class StepPoint {
  kBegin,     // nothing of the step is recorded
  kForward,   // initial weights are recorded; forward begins
  kGradients  // gradients are summed over the ranks and not recorded
};
/// Called on every rank, on its thread.
using StepHook = std::function<void(StepPoint point, eager::TrainState& state)>;

/// Adds to the recording; everything else is the back end's own, bit for bit. One thread.
class RecordingBackend final : public loop::Backend {
 public:
  /// All outlive it. `hook` may be empty.
  RecordingBackend(eager::TrainState& state, mesh::Mesh& mesh, StepRecording& recording, StepHook hook);
  ~RecordingBackend() override;
  RecordingBackend(const RecordingBackend&) = delete;
  RecordingBackend& operator=(const RecordingBackend&) = delete;

  void begin_step(const loop::StepRequest& request) override;
  loop::StepValues sums(const loop::UpdateSettings& settings) override;
  void update(const loop::UpdateSettings& settings) override;
  void discard() override;

  loop::StepSamples forward_backward(data::TrainLoader& loader, int64_t micro_batches) override {
    return backend_.forward_backward(loader, micro_batches);
  }
  loop::Votes vote(const loop::Votes& mine) override { return backend_.vote(mine); }
  std::vector<monitor::TensorStatistics> statistics() override { return backend_.statistics(); }
  std::string non_finite_gradient() override { return backend_.non_finite_gradient(); }
  void forget_loaded() override { backend_.forget_loaded(); }
  std::unique_ptr<loop::Evaluator> evaluator(bool average, bool float32) override {
    return backend_.evaluator(average, float32);
  }
  bool has_average() const override { return backend_.has_average(); }
  bool is_narrow() const override { return backend_.is_narrow(); }
  bool computes_narrow() const override { return backend_.computes_narrow(); }
  std::unique_ptr<loop::HostState> state_to_save() override { return backend_.state_to_save(); }
  std::unique_ptr<loop::HostState> state_to_load() override { return backend_.state_to_load(); }
  void write_counters(nlohmann::json& progress) const override { backend_.write_counters(progress); }
  void read_counters(const nlohmann::json& progress, int64_t step, bool has_average) override {
    backend_.read_counters(progress, step, has_average);
  }
  std::string where() const override { return backend_.where(); }
  std::optional<loop::DeviceMemory> device_memory() const override { return backend_.device_memory(); }

 private:
  void at_point(StepPoint point) {
    if (hook_) hook_(point, state_);
  }
  void record_output(const std::string& name, const at::Tensor& value);
  void record_weights();

  eager::TrainState& state_;
  mesh::Mesh& mesh_;
  StepRecording& recording_;
  const StepHook hook_;
  eager::Backend backend_;
  int64_t step_ = 0;  // 1-based, the one under way
  double loss_scale_ = 1;
};

}  // namespace tessera::train
