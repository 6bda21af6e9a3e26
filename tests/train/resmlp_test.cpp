// SPDX-License-Identifier: Apache-2.0
// A ResMLP through the trainer: the numbers of one rank on any, recompute bitwise, resume bitwise.
#include "small_run.h"
#include "tessera/base/file.h"

namespace tessera::train {
namespace {

using Sets = std::vector<std::string>;

constexpr const char* kResMlp = R"(
name = "resmlp"
[model]
family = "resmlp"
image_size = 16
patch_size = 4
width = 24
depth = 3
mlp_width = 40
classes = 7
layer_scale = 0.5
drop_path = 0.2
[data]
source = "fake:96"
workers = 1
[train]
batch = 48
steps = 6
seed = 5
[optimizer]
lr = 1e-2
[precision]
compute = "fp32"
)";

Curve train_resmlp(int64_t world, const Sets& sets, int64_t from, int64_t to,
                   const std::filesystem::path& folder) {
  at::set_num_threads(1);
  Curve result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = recipe::parse_recipe(kResMlp, "test", ".", sets);
    const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
    if (from > 0) train::load_state(*state, *checkpoint::find(folder, "latest"));
    Curve curve;
    train_until(*state, mesh, to, curve);
    train::save_state(*state, mesh, folder, false);
    if (mesh.rank() == 0) result = curve;
  });
  return result;
}

Curve train_resmlp(int64_t world, const Sets& sets = {}, int64_t steps = 4) {
  const TemporaryFolder folder("tessera-resmlp");
  return train_resmlp(world, sets, 0, steps, folder.path());
}

TEST(ResMlpLayouts, LossCurveEqualsOneRank) {
  const Curve expected = train_resmlp(1);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const auto& [world, sets] : std::vector<std::pair<int64_t, Sets>>{{2, {}},
                                                                         {3, {"train.accumulation=2"}},
                                                                         {2, {"shard.level=zero1"}},
                                                                         {4, {"shard.recompute=true"}}}) {
    SCOPED_TRACE(concat(world, " ranks ", sets.empty() ? "" : sets[0]));
    const Curve found = train_resmlp(world, sets);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
    expect_close(found, expected, 1e-5);
  }
  EXPECT_EQ(train_resmlp(1, {"shard.recompute=true"}).losses, expected.losses);
}

TEST(ResMlpResume, IsBitwise) {
  const TemporaryFolder folder("tessera-resmlp");
  const Curve straight = train_resmlp(2, {}, 6);
  train_resmlp(2, {}, 0, 3, folder.path());
  const Curve second = train_resmlp(2, {}, 3, 6, folder.path());
  for (const auto& [name, tensor] : straight.parameters)
    EXPECT_TRUE(tensor.equal(second.parameters.at(name))) << name;
}

}  // namespace
}  // namespace tessera::train
