// SPDX-License-Identifier: Apache-2.0
// One unit of communication: parameters that are gathered, used, released and reduced together.
//
// A unit's parameters lie one after another in a flat tensor: those whose number of elements is a multiple of
// 64 first, then the others, so that matrices are aligned (Unit::offset). The flat tensor's end is padded to
// a multiple of the ranks. Rank r owns shard r: the master copy (float32), its gradient and (elsewhere) the
// optimizer's state. Life of a ZeRO-3 unit in a step:
//
//   sharded --start_gather--> gathering --finish_gather--> gathered --release--> sharded      (forward)
//   sharded --start_gather--> ... gathered --start_reduce (gradients leave)--> released        (backward)
//
// Where the state is offloaded (plan::Offload), master copy and gradient lie in the host's memory
// (device/host_memory.h): a reduction lands where units compute and is copied there, and with Offload::kAll a
// gather begins by fetching the shard from there, on a single rank as well.
//
// The module's parameter tensors stay the same objects throughout; only the storage under them is filled and
// emptied. Autograd's saved tensors share that storage, so a unit must be gathered again before its backward
// runs. Belongs to the training thread; gathers and reductions run in the background between start and
// finish.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/region.h"
#include "tessera/device/host_memory.h"
#include "tessera/mesh/group.h"
#include "tessera/ops/device/copy_runs.h"
#include "tessera/plan/plan.h"
#include "tessera/shard/buffer_pool.h"

namespace tessera::shard {

using NamedTensor = std::pair<std::string, at::Tensor>;

struct Precision {
  at::ScalarType compute = at::kFloat;  // parameters as gathered, activations
  at::ScalarType reduce = at::kFloat;   // gradients on the wire
  at::ScalarType master = at::kFloat;   // shards
  at::ScalarType sum = at::kFloat;      // gradients where they are added: float32, float64 for such shards
};

/// Which boxes of a bigger tensor a parameter is: they lie one after another in its memory. With tensor
/// parallelism: columns of a matrix (one box), or the rows of some heads in q, in k and in v (three).
struct Placement {
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<Box> boxes;
};

/// The parameters of a unit, and where each lies.
struct UnitParameters {
  UnitParameters() = default;
  /// Every parameter is a whole tensor.
  UnitParameters(std::vector<NamedTensor> whole) : tensors(std::move(whole)) {}
  UnitParameters(std::initializer_list<NamedTensor> whole) : tensors(whole) {}
  /// `placed`: by parameter; none for one that is a whole tensor.
  UnitParameters(std::vector<NamedTensor> parameters, std::vector<std::optional<Placement>> placed)
      : tensors(std::move(parameters)), placements(std::move(placed)) {}

  std::vector<NamedTensor> tensors;
  std::vector<std::optional<Placement>> placements = {};
};

/// The ranks that share a unit's tensors.
struct UnitGroups {
  mesh::Group& shard;             // the state is split over these
  mesh::Group& replicate;         // these hold copies
  mesh::Group* tensor = nullptr;  // these hold the other boxes of the unit's tensors; null: whole tensors
};

/// The part of one parameter that this rank owns.
struct Shard {
  std::string name;
  std::vector<int64_t> shape;   // of the whole tensor
  std::vector<Region> regions;  // of the whole tensor, one for each box of the parameter, in the order of
                                // `master`: together as many elements; may be empty
  at::Tensor master;            // 1-D view in the master dtype
  at::Tensor gradient;          // the same of the reduced gradient: see Unit::gradient()
  int64_t unit_offset = 0;      // of `master` within the unit's shard
};

/// Calls body(region, part) for every region of a shard: `part` is what of `values` [the shard's elements]
/// belongs to the region, a view.
void over_regions(const Shard& shard, const at::Tensor& values,
                  const std::function<void(const Region&, const at::Tensor&)>& body);

class Unit {
 public:
  /// Takes over the storage of `parameters` (they may be hollow; sizes and requires_grad are kept, the dtype
  /// becomes the compute dtype). Their placements say which regions the shards are. Master values start
  /// uninitialised: fill them through shards(), then call parameters_changed().
  Unit(std::string name, UnitParameters parameters, plan::Level level, Precision precision,
       const UnitGroups& groups, BufferPool& pool, plan::Offload offload = plan::Offload::kNone);

  const std::string& name() const { return name_; }
  const std::vector<Shard>& shards() const { return shards_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t numel() const { return numel_; }
  int64_t padded_numel() const { return padded_numel_; }  // what a gather moves
  at::Tensor master() const { return master_; }           // [shard_numel] master dtype
  /// [shard_numel] sum dtype (see allow_gradient_as_made): valid after finish_reduce, undefined while no
  /// memory is held for it.
  at::Tensor gradient() const { return gradient_; }
  /// The ranks over which the state is split.
  mesh::Group& shard_group() const { return shard_; }
  /// The ranks that together hold whole tensors: each has other boxes of them in its unit. One rank where the
  /// unit's own tensors are whole.
  mesh::Group& tensor_group() const { return *tensor_; }
  int64_t replicas() const { return replicate_.size(); }
  int64_t replica() const { return replicate_.rank(); }  // which of the equal copies this rank holds
  /// Are parameters released between forward and backward?
  bool resharded_after_forward() const { return splits_parameters_; }
  /// Does the memory of the parameters come with a gather? false: it is always there.
  bool comes_and_goes() const { return !stays_; }
  /// [shard_numel] zeros in the master dtype, for the optimizer, where the master copy lies.
  at::Tensor new_state() const { return state_tensor(precision_.master); }
  /// Bytes of this unit in the host's memory because of its offload; the optimizer's come on top.
  int64_t offloaded_bytes() const;

  /// Fills the master values from `values`, one tensor for each parameter. `counts` unset: each rank takes
  /// its own shards. Otherwise all ranks get those of the one rank of the mesh that says true.
  /// Collective.
  void set_values(const std::vector<at::Tensor>& values, std::optional<bool> counts);
  /// From now on parameters carry the key of touch.h, and reading released ones is an error whatever reads
  /// them. Returns a tensor over the memory that comes and goes.
  at::Tensor watch_use();

  /// Index of the first element of parameters()[index] in the flat tensor: a multiple of the largest power of
  /// two, up to 64, that divides the parameter's number of elements.
  int64_t offset(size_t index) const { return offsets_[index]; }
  /// Starts to gather the parameters in the compute dtype, if they are not there; false if they are.
  /// Collective.
  bool start_gather();
  /// Blocks until the parameters can be used.
  void finish_gather();
  /// Gathered values are about to be outdated: until finish_gather() nothing may read them.
  void hide();
  /// Gives the gathered memory back (levels that keep parameters: does nothing until they change).
  void release();

  /// Micro-batches before the last keep their gradients here, in the sum's dtype, instead of reducing them.
  void accumulate_locally() { accumulate_locally_ = true; }
  /// Gradients of a new step: gradient() will be (what is in it, if `keep`) + sum / divisor.
  void begin_gradient(bool keep, double divisor);
  /// A backward pass begins. `last`: of the step's micro-batches; what communicates once a step does so then.
  void begin_backward(bool last) {
    last_micro_batch_ = last;
    placed_.assign(placed_.size(), false);
  }
  /// The backward pass failed: its gradients, and those of the step's earlier micro-batches, are forgotten; a
  /// gradient that the step began with (begin_gradient's `keep`) is there again.
  void abandon_backward();
  /// Where the unit collects the gradient of parameters()[index], for an operation that makes it there (see
  /// ops/gradient_memory.h); undefined where more than that would be there, or another dtype.
  at::Tensor gradient_memory(size_t index);
  /// Has one been made there that take_gradient() does not know of yet?
  bool awaits_gradient() const;
  /// Moves the gradient of parameters()[index], if there is one, to where the unit collects its gradients,
  /// and so frees autograd's.
  void take_gradient(size_t index);
  /// Takes what gradients are left and starts to sum them over the ranks. May be called again for gradients
  /// that came later. Collective.
  void start_reduce();
  /// Is a sum under way? It has up to three stages: over shards; over replicas; copies of that for the
  /// replicas.
  bool reducing() const { return stage_ != Stage::kNone; }
  /// Lets the present stage go on, without waiting.
  void advance_reduce() { reduce_.advance(); }
  /// Waits for the present stage and starts the next.
  void advance_reduce_stage();
  /// Blocks until gradient() holds the sum over ranks and over the micro-batches so far; with the last one's,
  /// the whole gradient.
  void finish_reduce();

  /// For an optimizer that writes the new values in the compute dtype as it makes them, which spares the next
  /// parameters_changed() a pass: [shard_numel], of which it writes every shard. Undefined: they are not kept
  /// beside the master values. Gathered copies go.
  at::Tensor values_to_write();
  /// The master values changed (optimizer step, loading): gathered copies are stale, gradients start anew.
  void parameters_changed();

  /// gradient() may have the compute dtype where it is what one backward pass of one rank made, with nothing
  /// added: for who reads it as it is. Anything else, and offloaded ones, have the sum's dtype all the same.
  void allow_gradient_as_made(bool allow) { as_made_ = allow; }
  /// A replay of a recorded pass (device/graph.h) left in gradient() what the pass would have: the step's
  /// later micro-batches add to it.
  void gradient_was_replayed() { has_gradient_ = true; }
  /// Gathered parameters go, whatever the level: the unit is as it was before a step.
  void drop_gathered() { free_gathered(); }
  /// Memory for gradient(), contents undefined, where there is none. A backward pass does so itself.
  void hold_gradient();
  /// gradient() is zero: no backward pass comes to the unit.
  void clear_gradient();
  /// Nobody reads gradient() before the next backward pass: until then its memory is others'. Offloaded
  /// gradients keep theirs.
  void forget_gradient();

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 private:
  enum class State { kSharded, kGathering, kGathered };
  enum class Stage { kNone, kShards, kReplicas, kCopies };

  bool offloads() const { return offload_ != plan::Offload::kNone; }
  at::TensorOptions here(at::ScalarType dtype) const;
  at::Tensor state_tensor(at::ScalarType dtype) const;
  at::Tensor scratch(const at::Tensor& like);
  at::Tensor fetched(const at::Tensor& state);
  void put(at::Tensor destination, const at::Tensor& source, bool add);
  void make_layout(const std::vector<std::optional<Placement>>& placements);
  void adopt_parameters();
  void free_gathered();
  bool collects_locally() const;
  at::Tensor& collected_gradients(bool* hold_earlier);
  void sum_over_replicas();
  void set_gradient(at::Tensor gradient);
  at::Tensor slot_of(const at::Tensor& collected, size_t index) const;
  void collect(const at::Tensor& slot, const at::Tensor& gradient, bool add);
  void make_copies();
  void set_gradient_aside();

  std::string name_;
  std::vector<NamedTensor> parameters_;
  plan::Level level_;
  Precision precision_;
  mesh::Group& shard_;
  mesh::Group& replicate_;
  std::unique_ptr<mesh::Group> alone_;  // where no group cuts the tensors
  mesh::Group* tensor_;
  BufferPool& pool_;
  plan::Offload offload_;

  State state_ = State::kSharded;
  bool stays_ = false;              // parameters are views of the shard: one rank, nothing to fetch
  bool splits_parameters_ = false;  // ZeRO-3 where parameters come and go
  bool has_gradient_ = false;       // gradient_ holds earlier micro-batches
  bool has_accumulated_ = false;    // accumulated_ does
  bool summed_ = false;             // and has been, or is being, summed over the replicas
  bool accumulate_locally_ = false;
  bool as_made_ = false;  // gradient_ may have the compute dtype
  bool last_micro_batch_ = true;
  bool copy_is_written_ = false;
  bool refuses_reads_ = false;  // of released parameters; see watch_use()
  double divisor_ = 1;
  std::vector<bool> taken_;   // by parameter: its gradient of this micro-batch is collected
  std::vector<bool> placed_;  // or on its way, and made where it is to be collected

  int64_t numel_ = 0, padded_numel_ = 0, shard_numel_ = 0;
  std::vector<int64_t> offsets_;  // of each parameter in the flat tensor
  std::vector<Shard> shards_;

  at::Tensor master_;         // [shard_numel] master dtype
  at::Tensor gradient_;       // [shard_numel] sum dtype, or as made
  at::Tensor compute_shard_;  // [shard_numel] compute dtype; master_ itself where that is the same
  at::Tensor full_;           // [padded_numel] compute dtype, storage empty while sharded
  at::Tensor collected_;      // [padded_numel] compute dtype: gradients of this micro-batch, unreduced
  at::Tensor accumulated_;    // [padded_numel] sum dtype: unreduced gradients of several micro-batches
  at::Tensor reduced_;        // [shard_numel] sum dtype: result of the reduction (or copies) under way
  at::Tensor replica_part_;   // [shard_numel / replicas] sum dtype: what this rank sums over the replicas
  at::Tensor previous_;       // [shard_numel] sum dtype: complete gradients to be added to
  std::vector<ops::CopyRun> waiting_;  // gradients to be collected, all copied or all added, in one launch
  bool waiting_adds_ = false;
  device::CopiesToHost copies_;  // of gradients, where they are offloaded; after the memory they go to
  Stage stage_ = Stage::kNone;
  mesh::Pending gather_, reduce_;
};

}  // namespace tessera::shard
