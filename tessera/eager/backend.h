// SPDX-License-Identifier: Apache-2.0
// LibTorch as the back end of the training loop: a TrainState whose passes are eager or replayed CUDA graphs.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/eager/state.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/one_by_one.h"
#include "tessera/mesh/mesh.h"

namespace tessera::eager {

/// The weights of a state, evaluated. Running statistics become the mean over the ranks first. Collective.
class StateEvaluator final : public loop::Evaluator {
 public:
  /// `state` outlives it.
  explicit StateEvaluator(TrainState& state);
  /// With the moving average in the place of the weights, until this goes; in float32: of a copy, which takes
  /// 8 bytes more of every value of this rank's shards.
  StateEvaluator(TrainState& state, mesh::Mesh& mesh, bool average, bool float32);
  ~StateEvaluator() override;
  StateEvaluator(const StateEvaluator&) = delete;
  StateEvaluator& operator=(const StateEvaluator&) = delete;

  loop::LoadingRank loading(const loop::World& world) const override;
  data::Batch placeholder_batch() const override;
  std::vector<float> logits(const data::Batch& batch) override;
  std::unique_ptr<loop::Judge> judge(const data::Source& source,
                                     const loop::EvaluateOptions& options) override;

 private:
  TrainState& of() const { return copy_ ? *copy_ : state_; }

  TrainState& state_;
  const bool average_;
  const int uncaught_ = std::uncaught_exceptions();  // errors under way when it was made
  std::unique_ptr<TrainState> copy_;
};

class Backend final : public loop::Backend {
 public:
  /// Both outlive it. A state without an optimizer only evaluates and loads.
  Backend(TrainState& state, mesh::Mesh& mesh);
  ~Backend() override;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  void begin_step(const loop::StepRequest& request) override;
  loop::StepSamples forward_backward(data::TrainLoader& loader, int64_t micro_batches) override;
  loop::Votes vote(const loop::Votes& mine) override;
  std::vector<monitor::TensorStatistics> statistics() override;
  loop::StepValues sums(const loop::UpdateSettings& settings) override;
  void update(const loop::UpdateSettings& settings) override;
  void discard() override;
  std::string non_finite_gradient() override;
  void forget_loaded() override;

  std::unique_ptr<loop::Evaluator> evaluator(bool average, bool float32) override;
  bool has_average() const override;
  bool is_narrow() const override;
  bool computes_narrow() const override;

  std::unique_ptr<loop::HostState> state_to_save() override;
  std::unique_ptr<loop::HostState> state_to_load() override;
  void write_counters(nlohmann::json& progress) const override;
  void read_counters(const nlohmann::json& progress, int64_t step, bool has_average) override;

  std::string where() const override;
  std::optional<loop::DeviceMemory> device_memory() const override;

 private:
  loop::Loaded load(data::TrainLoader* loader);
  void pass(const loop::MicroBatch& micro_batch, data::TrainLoader* next);
  loop::StepSamples pass_stages(data::TrainLoader& loader, int64_t micro_batches);

  TrainState& state_;
  mesh::Mesh& mesh_;

  struct Step;
  std::unique_ptr<Step> step_;  // the one under way
};

}  // namespace tessera::eager
