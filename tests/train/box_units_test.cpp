// SPDX-License-Identifier: Apache-2.0
// Units whose parameters are boxes of bigger tensors train, save and load as a unit of the whole tensors
// does.
#include "box_units.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tests/mesh/ranks.h"

namespace tessera::train::box_units {  // files of this folder share a translation unit
namespace {

/// Columns of `fc2`; of `qkv` the rows of some of four heads of 2 elements, in q, k and v; the bias is whole.
const std::vector<int64_t> kColumns = {36, 40}, kQkv = {24, 5}, kBias = {7};

Placement columns(int64_t begin, int64_t end) { return {kColumns, {{{{0, 36}, {begin, end}}}}}; }
Placement heads(int64_t begin, int64_t end) {
  Placement rows{kQkv, {}};
  for (int64_t part = 0; part < 3; ++part)
    rows.boxes.push_back({{{part * 8 + begin * 2, part * 8 + end * 2}, {0, 5}}});
  return rows;
}

std::vector<BoxUnit> whole_units(mesh::Mesh& mesh) {
  const UnitGroups alone{mesh.group(""), mesh.group("")};
  return {{"all", {{"fc2", whole(kColumns)}, {"qkv", whole(kQkv)}, {"bias", whole(kBias)}}, alone}};
}
std::vector<BoxUnit> halves(mesh::Group& shard, mesh::Mesh& mesh) {
  const UnitGroups groups{shard, mesh.group("")};
  return {{"left", {{"fc2", columns(0, 16)}, {"qkv", heads(0, 2)}, {"bias", whole(kBias)}}, groups},
          {"right", {{"fc2", columns(16, 40)}, {"qkv", heads(2, 4)}}, groups}};
}

struct Case {
  std::string optimizer;
  int64_t ranks = 1;
  bool half_each = false;  // of two ranks, each holds one half alone; else all share both halves
};

class BoxUnits : public ::testing::TestWithParam<Case> {};

/// Sums over whole matrices are sums of other parts. Other rules take every element for itself.
double tolerance_of(const std::string& optimizer) {
  return optimizer == "lamb" || optimizer == "lars" || optimizer == "adafactor" ? 1e-6 : 0;
}

TEST_P(BoxUnits, TrainSaveAndLoadAsTheWhole) {
  const Case& c = GetParam();
  const TemporaryFolder folder("tessera-boxes");
  const fs::path boxes = folder.path() / "boxes", one = folder.path() / "one",
                 later = folder.path() / "later";
  const auto on_boxes = [&](const std::function<void(Trained&)>& body) {
    testing::run_ranks({{"shard", c.ranks}}, [&](mesh::Mesh& mesh) {
      const at::NoGradGuard no_grad;
      const std::vector<BoxUnit> both = halves(c.half_each ? mesh.group("") : mesh.group("shard"), mesh);
      const std::vector<BoxUnit> one(1, both.at(static_cast<size_t>(mesh.rank() % 2)));
      Trained trained(c.half_each ? one : both, mesh, c.optimizer);
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
      Trained expected(whole_units(mesh), mesh, c.optimizer), found(whole_units(mesh), mesh, c.optimizer);
      for (int64_t step = 1; step <= 3; ++step) expected.step(step);
      body(expected, found);
    });
  };
  on_one([&](Trained& expected, Trained& found) {
    found.load(boxes / "step_00000003");
    expect_equal_state(found, expected, tolerance_of(c.optimizer));
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
    expect_equal_state(found, expected, tolerance_of(c.optimizer));
  });
}
INSTANTIATE_TEST_SUITE_P(Layouts, BoxUnits,
                         ::testing::Values(Case{"adamw", 1}, Case{"adamw", 3}, Case{"adamw", 2, true},
                                           Case{"sgd", 2}, Case{"lion", 2, true}, Case{"lamb", 1},
                                           Case{"lamb", 2}, Case{"lars", 2}, Case{"adafactor", 2},
                                           Case{"adafactor", 2, true}),
                         [](const auto& info) {
                           return concat(info.param.optimizer, info.param.ranks,
                                         info.param.half_each ? "HalfEach" : "");
                         });

TEST(BoxUnitShards, NameTheirRegions) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad;
    const Trained trained(halves(mesh.group(""), mesh), mesh, "sgd");
    const auto& right = trained.states()[1].unit->shards();
    ASSERT_EQ(right.size(), 2U);
    EXPECT_EQ(right[0].shape, kColumns);
    EXPECT_EQ(right[0].regions, std::vector{Region::of({{{0, 36}, {16, 40}}})});
    EXPECT_EQ(right[1].regions, (std::vector{Region::of({{{4, 8}, {0, 5}}}), Region::of({{{12, 16}, {0, 5}}}),
                                             Region::of({{{20, 24}, {0, 5}}})}));
    EXPECT_EQ(trained.states()[0].unit->shards()[2].regions, std::vector{Region::whole(kBias)});
  });
}

TEST(BoxUnitShards, OfOneTensorInTwoUnitsSaveItsRowsAndColumnsOnce) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const StateShards shards = Trained(halves(mesh.group(""), mesh), mesh, "adafactor").shards();
    for (const char* name : {"exp_avg_sq_r/fc2", "exp_avg_sq_c/fc2"})
      EXPECT_EQ(std::ranges::count(shards.list(), name, &checkpoint::TensorShard::name), 1) << name;
  });
}

// Muon looks for the other boxes in the units of other ranks.
TEST(BoxUnitShards, OfOneMatrixInTwoUnitsOfARankAreRefusedByMuon) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    try {
      const Trained trained(halves(mesh.group(""), mesh), mesh, "muon");
      FAIL();
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what())
                    .find("fc2 is not whole over the units left: the regions cover 576 of 1440 elements"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace tessera::train::box_units
