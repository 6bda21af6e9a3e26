// SPDX-License-Identifier: Apache-2.0
// A model that runs as segments, each a unit of sharding: gathers ahead, releases behind, recomputes where
// the plan says, reduces gradients as backward passes. Of a pipeline's stage it is the segments of the stage,
// in virtual stages that run by themselves. One training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/shard/reductions.h"
#include "tessera/shard/unit.h"

namespace tessera {
class Trace;
}

namespace tessera::shard {

/// A segment of the model that computes with the given parameters and no others. `forward` reads the
/// parameter tensors when it is called. `buffers`: what forward changes besides (BatchNorm's running
/// statistics); whole on every rank. A second run leaves them as the first did.
struct ShardedSegment {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  std::string name;
  UnitParameters parameters;
  Forward forward;
  std::vector<NamedTensor> buffers = {};
  /// Called at a forward that backward will run again (recompute): what repeats it, with all that `forward`
  /// reads now besides input and parameters, such as the keys of dropout masks; other micro-batches may pass
  /// before. Null: `forward` itself, which then reads nothing else.
  std::function<Forward()> repeat = {};
  /// Where the plan cuts the unit's layers, what is not cut of them: a unit of its own, plan::rows_plan's.
  std::vector<NamedTensor> rows = {};
  size_t local_stage = 0;  // which of the rank's virtual stages: 0, 1, ...; segments of one follow each other
  /// Nothing of it and of the segments before it is trained: no backward pass comes here, and its units'
  /// gradient() is zero.
  bool frozen = false;
};

/// A backward pass of a virtual stage that ends with no loss.
struct VirtualStageBackward {
  at::Tensor output;    // of the stage's forward; without a gradient where all of the stage is frozen
  at::Tensor gradient;  // of it; undefined: output is a loss
  bool last = true;     // of the optimizer step's micro-batches
  size_t local_stage = 0;
  std::function<void()> passed = {};  // called when the gradient has come through, before reductions are
                                      // waited for; may be null
};

class ShardedModel {
 public:
  /// Units in `plan` must carry the segments' names; the mesh must have the plan's ranks and the groups of
  /// plan::spans_of(plan). A unit's state is split over plan::shard_span and replicated over
  /// plan::replicate_span. Of a cut unit the segment's parameters are this rank's boxes.
  /// `device`: where all of it lies and computes, but for what the plan offloads; the segments' buffers are
  /// there already.
  ShardedModel(std::vector<ShardedSegment> segments, const plan::Plan& plan, Precision precision,
               mesh::Mesh& mesh, at::Device device = at::kCPU);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  /// Runs all segments. With gradients enabled, prepares backward. Collective: every rank calls it equally
  /// often.
  at::Tensor forward(const at::Tensor& input) { return forward(input, 0); }
  /// Runs the segments of a virtual stage. Other micro-batches may pass before the backward pass of this one.
  at::Tensor forward(const at::Tensor& input, size_t local_stage);
  /// Backward of a loss made from forward's output. Gradients of earlier micro-batches are added to. `last`:
  /// of the optimizer step's micro-batches. Afterwards (with last) every unit's gradient() is complete.
  void backward(const at::Tensor& loss, bool last) { backward({loss, {}, last}); }
  /// The same of a virtual stage: its units' gradients are complete after its last micro-batch.
  void backward(const VirtualStageBackward& pass);
  /// A forward or backward pass threw: what backward has collected is forgotten; gradient() is of no use.
  void abandon_backward();
  /// After an optimizer step or loading. Gradients go, and so does their memory until the next backward.
  void parameters_changed();
  /// Does their memory stay from now on? What is recorded writes there (device/graph.h).
  void keep_gradients(bool keep) { keeps_gradients_ = keep; }
  /// Buffers of all segments, in their order.
  std::vector<NamedTensor> buffers() const;
  /// Buffers are each rank's own while training. Now they become the mean over the ranks of the stage
  /// (average.h). Collective.
  void average_buffers();
  /// Units that are gathered ahead of the one that computes. 0: nothing overlaps, reductions neither.
  void set_prefetch(int64_t units) { prefetch_ = units; }

  /// This rank's share of the squared norm of the gradient, a float64 scalar where the units compute: summed
  /// over all ranks it is the whole. Local; does not wait for the device.
  at::Tensor gradient_square_sum() const;
  /// The same, read by the host.
  double local_gradient_square_sum() const;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  /// The unit that computes or is waited for, for error messages.
  const std::string& current_unit() const { return current_unit_; }

 private:
  class RecomputedSegment;

  /// Segments that run one after another, and the reductions of their units.
  struct VirtualStage {
    size_t begin = 0, end = 0;       // segments
    size_t trained = 0;              // the first of them that is not frozen; `end` if all are
    std::vector<size_t> units = {};  // that the reductions watch
    std::unique_ptr<Reductions> reductions = nullptr;
  };
  VirtualStage& stage_with(size_t segment) { return virtual_stages_[segments_[segment].local_stage]; }
  at::Tensor run_segment(size_t index, at::Tensor input);
  void add_unit(size_t segment, UnitParameters parameters, const plan::UnitPlan& unit_plan,
                const plan::Plan& plan, Precision precision);
  void start_gathers(size_t segment);
  void finish_gathers(size_t segment);
  void release_units(size_t segment);
  void gather_for_forward(size_t index);
  void gather_for_backward(size_t index);
  void gradients_left(size_t unit);
  at::Tensor gradient_memory(const at::Tensor& parameter) const;

  mesh::Mesh& mesh_;
  mesh::Group& stage_;
  std::vector<ShardedSegment> segments_;
  std::vector<bool> recompute_;
  int64_t prefetch_;
  BufferPool pool_;
  std::vector<std::unique_ptr<Unit>> units_;       // of the first segment, of the second, ...
  std::vector<std::vector<Unit*>> segment_units_;  // by segment
  struct UnitParameter {
    Unit* unit;
    size_t index;
  };
  std::unordered_map<const at::TensorImpl*, UnitParameter> parameters_;
  std::string current_unit_ = "none";
  Trace* trace_ = nullptr;  // of the thread that called backward(): autograd uses others on a device
  bool keeps_gradients_ = false;

  std::vector<VirtualStage> virtual_stages_;
};

}  // namespace tessera::shard
