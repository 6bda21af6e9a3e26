// SPDX-License-Identifier: Apache-2.0
// Units whose parameters are boxes of bigger tensors train, save and load as a unit of the whole tensors
// does.
#include <gtest/gtest.h>

#include "given_gradients.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/mesh/checkpoint_ranks.h"
#include "tessera/optim/update_rule.h"
#include "tests/error_text.h"
#include "tests/mesh/ranks.h"

namespace tessera::train::box_units {  // files of this folder share a translation unit
namespace {
namespace fs = std::filesystem;
using shard::Placement, shard::Unit, shard::UnitParameters;

/// Columns of `fc2`; of `qkv` the rows of some of four heads of 2 elements, in q, k and v; the bias is whole.
const std::vector<int64_t> kColumns = {6, 10}, kQkv = {24, 5}, kBias = {7};

struct Part {
  std::string unit;
  std::vector<std::pair<std::string, Placement>> parameters;
};

Placement columns(int64_t begin, int64_t end) { return {kColumns, {{{{0, 6}, {begin, end}}}}}; }
Placement heads(int64_t begin, int64_t end) {
  Placement rows{kQkv, {}};
  for (int64_t part = 0; part < 3; ++part)
    rows.boxes.push_back({{{part * 8 + begin * 2, part * 8 + end * 2}, {0, 5}}});
  return rows;
}
Placement whole(const std::vector<int64_t>& shape) { return {shape, {Box::whole(shape)}}; }

const std::vector<Part> kWhole = {
    {"all", {{"fc2", whole(kColumns)}, {"qkv", whole(kQkv)}, {"bias", whole(kBias)}}}};
const std::vector<Part> kHalves = {
    {"left", {{"fc2", columns(0, 4)}, {"qkv", heads(0, 2)}, {"bias", whole(kBias)}}},
    {"right", {{"fc2", columns(4, 10)}, {"qkv", heads(2, 4)}}}};

/// The whole tensor at a step; step 0: its initial value.
at::Tensor given(const std::string& name, const std::vector<int64_t>& shape, int64_t step) {
  return models::formula::uniform(concat(name, '/', step), Box::whole(shape).numel()).view(shape) * 0.5;
}

/// A parameter's elements, box after box, by LibTorch's slices.
at::Tensor placed(at::Tensor tensor, const Placement& place) {
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
  Trained(const std::vector<Part>& parts, mesh::Mesh& mesh, mesh::Group& group, const std::string& optimizer)
      : mesh_(mesh), group_(group), parts_(parts), rule_(make_rule(recipe_of(optimizer))) {
    for (const Part& part : parts) {
      std::vector<shard::NamedTensor> tensors;
      std::vector<std::optional<Placement>> placements;
      for (const auto& [name, place] : part.parameters) {
        tensors.emplace_back(name, placed(at::zeros(place.shape), place).set_requires_grad(true));
        const bool is_whole = place.boxes.size() == 1 && place.boxes[0] == Box::whole(place.shape);
        placements.push_back(is_whole ? std::nullopt : std::optional(place));
      }
      units_.push_back(std::make_unique<Unit>(part.unit, UnitParameters(tensors, placements),
                                              plan::Level::kZero3, shard::Precision{},
                                              shard::UnitGroups{group, mesh.group("")}, pool_));
      std::vector<at::Tensor> values;
      for (const auto& [name, place] : part.parameters)
        values.push_back(placed(given(name, place.shape, 0), place));
      units_.back()->set_values(values, std::nullopt);
      UnitState state{units_.back().get(), {}, {}};
      for (const auto& [name, place] : part.parameters)
        state.settings.push_back({0.1, 1.0, place.shape.size() > 1});
      for (size_t i = 0; i < rule_->kept().size(); ++i) state.kept.push_back(units_.back()->new_state());
      states_.push_back(std::move(state));
    }
    rule_->prepare(states_);
  }

  void step(int64_t number) {
    for (size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = *units_[i];
      unit.begin_gradient(/*keep=*/false, 1);
      unit.begin_backward(/*last=*/true);
      for (size_t k = 0; k < unit.parameters().size(); ++k) {
        const auto& [name, place] = parts_[i].parameters[k];
        at::Tensor parameter = unit.parameters()[k].second;
        // The ranks' gradients add up.
        parameter.mutable_grad() =
            placed(given(name, place.shape, number), place) / static_cast<double>(group_.size());
      }
      unit.start_reduce();
      unit.finish_reduce();
    }
    rule_->step(states_, {.lr = 0.01, .grad_scale = 0.5, .number = number}, mesh_);
    for (const auto& unit : units_) unit->parameters_changed();
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
    rule_->append_shards("", mesh_.rank() == 0, shards);
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

 private:
  static recipe::OptimizerRecipe recipe_of(const std::string& name) {
    return optimizer_recipe({"optimizer.name=" + name});
  }

  mesh::Mesh& mesh_;
  mesh::Group& group_;
  std::vector<Part> parts_;
  shard::BufferPool pool_{at::kCPU};
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<UnitState> states_;
  std::unique_ptr<UpdateRule> rule_;
};

struct Case {
  std::string optimizer;
  int64_t ranks = 1;
  bool half_each = false;  // of two ranks, each holds one half alone; else all share both halves
};

class BoxUnits : public ::testing::TestWithParam<Case> {};

void expect_equal(const Trained& found, const Trained& expected, const std::string& optimizer) {
  const UnitState &a = found.states()[0], &b = expected.states()[0];
  // Norms of whole matrices are sums of other parts.
  const double tolerance = optimizer == "lamb" || optimizer == "lars" ? 1e-6 : 0;
  const auto near = [&](const at::Tensor& x, const at::Tensor& y) {
    return (x - y).abs().max().item<double>() <= tolerance;
  };
  EXPECT_TRUE(near(a.unit->master(), b.unit->master()));
  for (size_t i = 0; i < a.kept.size(); ++i) EXPECT_TRUE(near(a.kept[i], b.kept[i])) << i;
}

TEST_P(BoxUnits, TrainSaveAndLoadAsTheWhole) {
  const Case& c = GetParam();
  const TemporaryFolder folder("tessera-boxes");
  const fs::path boxes = folder.path() / "boxes", one = folder.path() / "one",
                 later = folder.path() / "later";
  const auto on_boxes = [&](const std::function<void(Trained&)>& body) {
    testing::run_ranks({{"shard", c.ranks}}, [&](mesh::Mesh& mesh) {
      const at::NoGradGuard no_grad;
      mesh::Group& group = c.half_each ? mesh.group("") : mesh.group("shard");
      std::vector<Part> parts = kHalves;
      if (c.half_each) parts = {kHalves.at(static_cast<size_t>(mesh.rank()))};
      Trained trained(parts, mesh, group, c.optimizer);
      body(trained);
    });
  };
  on_boxes([&](Trained& trained) {
    for (int64_t step = 1; step <= 3; ++step) trained.step(step);
    trained.save(boxes, 3);
  });
  EXPECT_EQ(checkpoint::verify(boxes / "step_00000003"), std::vector<std::string>());
  const auto on_one = [&](const std::function<void(Trained&, Trained&)>& body) {
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      const at::NoGradGuard no_grad;
      Trained expected(kWhole, mesh, mesh.group(""), c.optimizer),
          found(kWhole, mesh, mesh.group(""), c.optimizer);
      for (int64_t step = 1; step <= 3; ++step) expected.step(step);
      body(expected, found);
    });
  };
  on_one([&](Trained& expected, Trained& found) {
    found.load(boxes / "step_00000003");
    expect_equal(found, expected, c.optimizer);
    expected.save(one, 3);
  });
  on_boxes([&](Trained& trained) {  // goes on from the whole one's checkpoint
    trained.load(one / "step_00000003");
    for (int64_t step = 4; step <= 6; ++step) trained.step(step);
    trained.save(later, 6);
  });
  on_one([&](Trained& expected, Trained& found) {
    for (int64_t step = 4; step <= 6; ++step) expected.step(step);
    found.load(later / "step_00000006");
    expect_equal(found, expected, c.optimizer);
  });
}
INSTANTIATE_TEST_SUITE_P(Layouts, BoxUnits,
                         ::testing::Values(Case{"adamw", 1}, Case{"adamw", 3}, Case{"adamw", 2, true},
                                           Case{"sgd", 2}, Case{"lion", 2, true}, Case{"lamb", 1},
                                           Case{"lamb", 2}, Case{"lars", 2}),
                         [](const auto& info) {
                           return concat(info.param.optimizer, info.param.ranks,
                                         info.param.half_each ? "HalfEach" : "");
                         });

TEST(BoxUnitShards, NameTheirRegions) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad;
    const Trained halves(kHalves, mesh, mesh.group(""), "sgd");
    const auto& right = halves.states()[1].unit->shards();
    ASSERT_EQ(right.size(), 2U);
    EXPECT_EQ(right[0].shape, kColumns);
    EXPECT_EQ(right[0].regions, std::vector{Region::of({{{0, 6}, {4, 10}}})});
    EXPECT_EQ(right[1].regions, (std::vector{Region::of({{{4, 8}, {0, 5}}}), Region::of({{{12, 16}, {0, 5}}}),
                                             Region::of({{{20, 24}, {0, 5}}})}));
    EXPECT_EQ(halves.states()[0].unit->shards()[2].interval(), (DimRange{0, 7}));
    EXPECT_THROW(right[0].interval(), InternalError);
  });
}

TEST(BoxUnitShards, AreRefusedByRulesOfWholeTensors) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    for (const std::string optimizer : {"muon", "adafactor"}) {
      try {
        const Trained halves(kHalves, mesh, mesh.group(""), optimizer);
        FAIL();
      } catch (const InternalError& error) {
        EXPECT_NE(
            std::string(error.what()).find(optimizer + " cannot update boxes of tensors, and fc2 is one"),
            std::string::npos)
            << error.what();
      }
    }
  });
}

}  // namespace
}  // namespace tessera::train::box_units
