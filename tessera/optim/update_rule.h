// SPDX-License-Identifier: Apache-2.0
// What an optimizer is: a rule that updates this rank's shards from their gradients, and what it keeps for
// that. Three kinds by what a rule has to know of a parameter: single numbers (elementwise_rules.cpp), norms
// of whole tensors (layerwise_rules.cpp), or more of whole tensors, in files of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/optim/state_shards.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/unit.h"

namespace tessera::optim {

/// How one parameter is treated.
struct Setting {
  double weight_decay = 0;
  double lr_scale = 1;  // of the learning rate
  bool matrix = false;  // or a convolution: rules that look at whole tensors look at these
  bool operator==(const Setting&) const = default;
};

/// A unit's share, and what is kept of it.
struct UnitState {
  shard::Unit* unit = nullptr;
  std::vector<Setting> settings;              // by shard
  std::vector<at::Tensor> kept;               // by UpdateRule::kept(): [shard_numel] float32
  int64_t units_before = 0, units_after = 0;  // in the whole model, whatever this rank holds
};

struct Step {
  double lr = 0;
  double grad_scale = 1;  // multiplies gradients first (clipping)
  int64_t number = 1;     // 1-based
};

/// A rule whose numbers may lie in the device's memory: its update is queued before the host knows the
/// gradient's norm, and can be recorded (device/graph.h).
class QueuedRule {
 public:
  virtual ~QueuedRule() = default;
  /// What the host knows of a step (all but its grad_scale), for queue(): always as many values.
  virtual std::vector<float> numbers(const Step& step) const = 0;
  /// Queues an update of the master values, without waiting for the device. `numbers`: those of the step,
  /// [as many] float32; `grad_scale` multiplies gradients first, with `use` = 0 nothing is written: float32
  /// scalars. All of them on the units' device. Local.
  virtual void queue(std::span<const UnitState> units, const at::Tensor& numbers,
                     const at::Tensor& grad_scale, const at::Tensor& use) const = 0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// What is kept of each number of a parameter, as checkpoints name it.
  virtual std::vector<std::string> kept() const = 0;
  /// Does step() take a gradient as the backward pass made it, in the compute dtype? (Unit's
  /// allow_gradient_as_made)
  virtual bool takes_gradients_as_made() const { return false; }
  /// Makes what is kept besides. Called once, before the first step. Collective.
  virtual void prepare(std::span<const UnitState>, mesh::Mesh&) {}
  /// One update of the master values. Collective. Gradients may be used up.
  virtual void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& mesh) = 0;
  /// The same rule for a device that takes its numbers from its own memory; null where there is none.
  virtual const QueuedRule* queued() const { return nullptr; }
  /// This rank's shards of what is kept besides.
  virtual void append_shards(const std::string& /*prefix*/, StateShards&) const {}
};

/// The rule of this name; the others follow from the recipe's options.
std::unique_ptr<UpdateRule> make_rule(const recipe::OptimizerRecipe& options);

/// Parameters of a unit that are neighbours in memory (shard::Unit::offset) and have the same setting:
/// elements [begin, end) of its shard.
struct Stretch {
  int64_t begin, end;
  Setting setting;
};
/// The longest ones, in ascending order; none is empty.
std::vector<Stretch> stretches_of(const UnitState& unit);

/// A stretch of memory. 1-D views.
struct Run {
  at::Tensor values, gradient;
  std::vector<at::Tensor> kept;
  Setting setting;
  int64_t begin = 0;  // in the unit
};
/// All stretches of all units, first to last.
void over_runs(std::span<const UnitState> units, const std::function<void(const Run&)>& body);

/// What of a unit's flat tensor [shard_numel] is this shard's. A view.
at::Tensor part_of(const at::Tensor& flat, const shard::Shard& shard);

/// Adds the regions of a shard to what a checkpoint holds. Their memory is `part`, 1-D float32, with as many
/// elements as the shard.
void add_shard(StateShards& shards, std::string_view prefix, const shard::Unit& unit,
               const shard::Shard& shard, const at::Tensor& part);

/// LARS's ratio of norms of a whole tensor: trust |w| / (|g| + weight_decay |w| + epsilon), 1 where one is 0.
double lars_ratio(double weights, double gradient, double weight_decay, double trust, double epsilon = 0);

/// The rules of other files than make_rule's.
std::unique_ptr<UpdateRule> make_lamb(const recipe::OptimizerRecipe& options);
std::unique_ptr<UpdateRule> make_lars(const recipe::OptimizerRecipe& options);
std::unique_ptr<UpdateRule> make_adafactor(const recipe::OptimizerRecipe& options);
std::unique_ptr<UpdateRule> make_muon(const recipe::OptimizerRecipe& options);

}  // namespace tessera::optim
