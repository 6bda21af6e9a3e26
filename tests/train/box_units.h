// SPDX-License-Identifier: Apache-2.0
// Units whose parameters are whole tensors or boxes of them, with given gradients, stepped by an optimizer's
// rule.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "given_gradients.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/mesh/checkpoint_ranks.h"
#include "tessera/optim/update_rule.h"

namespace tessera::train::box_units {
namespace fs = std::filesystem;
using shard::Placement, shard::Unit, shard::UnitGroups, shard::UnitParameters;

/// A unit of one rank; those in between are Muon's.
struct BoxUnit {
  std::string unit;
  std::vector<std::pair<std::string, Placement>> parameters;
  UnitGroups groups;
  int64_t units_before = 1, units_after = 1;
};

inline Placement whole(const std::vector<int64_t>& shape) { return {shape, {Box::whole(shape)}}; }

/// The whole tensor at a step; step 0: its initial value.
inline at::Tensor given(const std::string& name, const std::vector<int64_t>& shape, int64_t step) {
  return models::formula::uniform(concat(name, '/', step), Box::whole(shape).numel()).view(shape) * 0.5;
}

/// A parameter's elements, box after box, by LibTorch's slices.
inline at::Tensor placed(const at::Tensor& tensor, const Placement& place) {
  std::vector<at::Tensor> boxes;
  for (const Box& box : place.boxes) {
    at::Tensor part = tensor;
    for (size_t d = 0; d < box.dims.size(); ++d)
      part = part.narrow(static_cast<int64_t>(d), box.dims[d].begin, box.dims[d].size());
    boxes.push_back(part);
  }
  return at::cat(boxes).contiguous();
}

/// This rank's units, an optimizer's rule over them, and what it keeps.
class Trained {
 public:
  Trained(std::vector<BoxUnit> parts, mesh::Mesh& mesh, const std::string& optimizer)
      : mesh_(mesh),
        parts_(std::move(parts)),
        rule_(make_rule(optimizer_recipe({"optimizer.name=" + optimizer}))) {
    for (const BoxUnit& part : parts_) {
      units_.push_back(make_unit(part));
      UnitState state;
      state.unit = units_.back().get();
      for (const auto& [name, place] : part.parameters)
        state.settings.push_back({0.1, 1.0, place.shape.size() > 1});
      for (size_t i = 0; i < rule_->kept().size(); ++i) state.kept.push_back(state.unit->new_state());
      state.units_before = part.units_before;
      state.units_after = part.units_after;
      states_.push_back(std::move(state));
    }
    rule_->prepare(states_, mesh_);
  }

  void step(int64_t number) {
    reduce_gradients(number);
    rule_->step(states_, {.lr = 0.01, .grad_scale = 0.5, .number = number}, mesh_);
    for (const auto& unit : units_) unit->parameters_changed();
  }
  /// What step() does before the rule's.
  void reduce_gradients(int64_t number) {
    for (size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = *units_[i];
      unit.begin_gradient(/*keep=*/false, 1);
      unit.begin_backward(/*last=*/true);
      // One of the ranks that add their gradients has the given one, and all others have zeros: that is
      // exact.
      const mesh::Group& shards = unit.shard_group();
      const int64_t rank = unit.replica() * shards.size() + shards.rank();
      const bool mine = number % (unit.replicas() * shards.size()) == rank;
      for (size_t k = 0; k < unit.parameters().size(); ++k) {
        const auto& [name, place] = parts_[i].parameters[k];
        at::Tensor parameter = unit.parameters()[k].second;
        parameter.mutable_grad() = placed(given(name, place.shape, number), place) * (mine ? 1.0 : 0.0);
      }
      unit.start_reduce();
      unit.finish_reduce();
    }
  }

  StateShards shards() const {
    StateShards shards;
    for (const UnitState& state : states_) {
      for (const shard::Shard& shard : state.unit->shards()) {
        add_shard(shards, checkpoint::names::kParameter, *state.unit, shard, shard.master);
        for (size_t i = 0; i < state.kept.size(); ++i)
          add_shard(shards, rule_->kept()[i] + "/", *state.unit, shard, part_of(state.kept[i], shard));
      }
    }
    rule_->append_shards("", shards);
    return shards;
  }
  fs::path save(const fs::path& folder, int64_t step) const {
    checkpoint::Progress progress;
    progress.step = step;
    return checkpoint::save({.folder = folder}, shards().list(), progress,
                            mesh::checkpoint_ranks(mesh_.world()));
  }
  void load(const fs::path& checkpoint) {
    checkpoint::load(checkpoint, shards().list());
    for (const auto& unit : units_) unit->parameters_changed();
  }

  const std::vector<UnitState>& states() const { return states_; }
  UpdateRule& rule() { return *rule_; }

 private:
  std::unique_ptr<Unit> make_unit(const BoxUnit& part) {
    std::vector<shard::NamedTensor> tensors;
    std::vector<std::optional<Placement>> placements;
    std::vector<at::Tensor> values;
    for (const auto& [name, place] : part.parameters) {
      tensors.emplace_back(name, placed(at::zeros(place.shape), place).set_requires_grad(true));
      const bool is_whole = place.boxes.size() == 1 && place.boxes[0] == Box::whole(place.shape);
      placements.push_back(is_whole ? std::nullopt : std::optional(place));
      values.push_back(placed(given(name, place.shape, 0), place));
    }
    auto unit = std::make_unique<Unit>(part.unit, UnitParameters(tensors, placements), plan::Level::kZero3,
                                       shard::Precision{}, part.groups, pool_);
    unit->set_values(values, std::nullopt);
    return unit;
  }

  mesh::Mesh& mesh_;
  std::vector<BoxUnit> parts_;
  shard::BufferPool pool_{at::kCPU};
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitState> states_;
  std::unique_ptr<UpdateRule> rule_;
};

/// Of two trainings whose tensors are whole on one rank: what differs by more than `tolerance` times a
/// tensor's largest value.
inline void expect_equal_state(const Trained& found, const Trained& expected, double tolerance) {
  const StateShards a = found.shards(), b = expected.shards();
  ASSERT_EQ(a.list().size(), b.list().size());
  for (size_t i = 0; i < a.list().size(); ++i) {
    const auto &x = a.list()[i], &y = b.list()[i];
    ASSERT_EQ(x.name, y.name);
    ASSERT_TRUE(x.region == y.region && y.region == Region::whole(y.shape)) << y.name;
    const auto values = [](const checkpoint::TensorShard& shard) {
      return at::from_blob(shard.data, {shard.region.numel()}, at::kFloat);
    };
    const double largest = values(y).abs().max().item<double>();
    const double difference = (values(x) - values(y)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * largest) << y.name << ", largest value " << largest;
  }
}

}  // namespace tessera::train::box_units
