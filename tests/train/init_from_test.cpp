// SPDX-License-Identifier: Apache-2.0
// Trainings that begin with weights that somebody trained.
#include "tessera/eager/init_from.h"

#include <algorithm>

#include "../error_text.h"
#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/weights/weights.h"

namespace tessera::train {
namespace {

/// A checkpoint of the small ViT after two steps on `world` ranks, and its parameters.
class InitFrom : public ::testing::Test {
 protected:
  void save(int64_t world, const Sets& sets = {}) {
    before = train_layout(world, sets, 2, {}).parameters;
    const recipe::Recipe recipe = make_recipe(sets);
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, true);
      Curve curve;
      train_until(*state, mesh, 2, curve);
      train::save_state(*state, mesh, folder.path(), false);
    });
  }
  Sets begun(Sets sets = {}) const {
    sets.push_back(concat("train.init_from=", folder.path().string()));
    return sets;
  }
  /// Parameters before the first step, or after some.
  static Parameters started(int64_t world, const Sets& sets, int64_t steps = 0) {
    Log log(false);
    return train_layout(world, sets, steps, [&](TrainState& state, mesh::Mesh&) { init_from(state, log); })
        .parameters;
  }
  static std::string error(const Sets& sets) {
    return error_text([&] { started(1, sets); });
  }

  const TemporaryFolder folder{"tessera-init"};
  Parameters before;
};

TEST_F(InitFrom, ACheckpointOfAnyRanksIsTakenBitwise) {
  save(2);
  for (const int64_t world : {1, 2, 3}) expect_equal(started(world, begun()), before);
  expect_equal(started(4, begun({"parallel.tensor=2"})), before);
}

TEST_F(InitFrom, ACheckpointOfATensorLayoutIsTakenBitwise) {
  save(4, {"parallel.tensor=2", "parallel.tensor_adjacent=false"});
  expect_equal(started(1, begun()), before);
  expect_equal(started(4, begun({"parallel.tensor=4"})), before);
}

TEST_F(InitFrom, TheRunIsNewAndItsAverageBeginsWithTheWeights) {
  save(1);
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(begun({"ema.decay=0.9"}));
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    Log log(false);
    init_from(*state, log);
    EXPECT_EQ(state->step, 0);
    EXPECT_EQ(state->optimizer->steps(), 0);
    EXPECT_EQ(state->ema->updates(), 0);
    state->ema->exchange(*state->sharded);
    expect_equal(gather_parameters(*state), before);
  });
}

TEST_F(InitFrom, AnotherSizeAndOtherClassesChangePositionsAndHeadAlone) {
  save(1);
  const Sets larger = {"model.image_size=32", "model.classes=5", "train.init_head_bias=-2"};
  for (const char* how : {"bicubic", "linear"}) {
    Sets sets = begun(larger);
    sets.push_back(concat("train.init_positions=", how));
    const Parameters found = started(2, sets);
    Parameters expected = before;
    expected["head.weight"] = at::zeros({5, 24});
    expected["head.bias"] = at::full({5}, -2.0F);
    const at::Tensor old = before.at("pos_embed").view({-1, 24});
    const auto rows = old.slice(0, 1).contiguous();
    const auto resampled =
        weights::resample_positions({rows.const_data_ptr<float>(), static_cast<size_t>(rows.numel())}, 2, 4,
                                    24, weights::resampling_of(how));
    expected["pos_embed"] =
        at::cat({old.slice(0, 0, 1), at::tensor(resampled).view({16, 24})}).view({1, 17, 24});
    expect_equal(found, expected);
  }
}

TEST_F(InitFrom, AFreshHeadIsTheRecipesOwn) {
  save(1);
  const Sets other = {"train.seed=11"};
  const Parameters random = train_layout(1, other, 0).parameters;
  Sets sets = begun(other);
  sets.emplace_back("train.init_head=fresh");
  Parameters expected = before;
  for (const char* name : {"head.weight", "head.bias"}) expected[name] = random.at(name);
  expect_equal(started(2, sets), expected);
}

TEST_F(InitFrom, ALinearProbeChangesTheHeadAlone) {
  save(1);
  for (const int64_t world : {1, 2}) {
    const Parameters found = started(world, begun({"optimizer.groups=[\"[!h]*: freeze\"]"}), 3);
    expect_equal(found, before, {"head.weight", "head.bias"});
    EXPECT_FALSE(found.at("head.weight").equal(before.at("head.weight")));
    EXPECT_FALSE(found.at("head.bias").equal(before.at("head.bias")));
  }
}

// The parameters of cut layers that a group freezes stay, and the others follow one rank's.
TEST_F(InitFrom, FrozenPartsOfCutLayersStay) {
  save(1);
  const Sets frozen = begun({"optimizer.groups=[\"*.attn.*: freeze\", \"*.fc1.weight: lr_scale=0.5\"]"});
  const Parameters expected = started(1, frozen, 3);
  Sets cut = frozen;
  cut.emplace_back("parallel.tensor=2");
  for (const int64_t world : {2, 4}) {
    const Parameters found = started(world, cut, 3);
    for (const auto& [name, tensor] : expected) {
      EXPECT_EQ(found.at(name).equal(before.at(name)), name.find(".attn.") != std::string::npos) << name;
      EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-4) << name;
    }
  }
}

TEST_F(InitFrom, AFileOfTimm) {
  const std::string file = TESSERA_SOURCE_DIR "/tests/weights/fixtures/timm.safetensors";
  const Sets sets = {"model.image_size=12", "model.patch_size=4",     "model.width=16",
                     "model.depth=2",       "model.heads=2",          "model.mlp_width=32",
                     "model.classes=5",     "train.init_from=" + file};
  const auto model = weights::open_model(file, {.from = {}, .ema = true, .heads = 2});
  for (const int64_t world : {1, 3}) {
    const Parameters found = started(world, sets);
    for (size_t i = 0; i < model.tensors->tensors().size(); ++i) {
      const auto& tensor = model.tensors->tensors()[i];
      at::Tensor wanted = at::empty(tensor.shape);
      model.tensors->read(i, 0, {static_cast<std::byte*>(wanted.mutable_data_ptr()), wanted.nbytes()});
      EXPECT_TRUE(found.at(tensor.name.substr(6)).equal(wanted)) << tensor.name;
    }
  }
}

TEST_F(InitFrom, AResNetBringsItsStatistics) {
  std::map<std::string, at::Tensor> statistics;
  Curve curve;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const auto recipe = resnet_recipe();
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    train_until(*state, mesh, 3, curve);
    train::save_state(*state, mesh, folder.path(), false);
    for (const auto& [name, buffer] : state->sharded->buffers()) statistics[name] = buffer.clone();
  });
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const auto recipe = resnet_recipe(begun({"model.classes=3"}));
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    Log log(false);
    init_from(*state, log);
    for (const auto& [name, buffer] : state->sharded->buffers())
      EXPECT_TRUE(buffer.equal(statistics.at(name)));
    EXPECT_EQ(state->sharded->buffers().size(), statistics.size());
    Parameters found = gather_parameters(*state);
    EXPECT_EQ(found.at("fc.weight").abs().sum().item<double>(), 0);
    found["fc.weight"] = curve.parameters.at("fc.weight");
    found["fc.bias"] = curve.parameters.at("fc.bias");
    expect_equal(found, curve.parameters);
  });
}

TEST_F(InitFrom, WhatDoesNotFitIsNamed) {
  save(1);
  EXPECT_EQ(error(begun({"model.depth=4"})),
            "[weights.finetune] the model's depth is 4, but that of the weights is 3: expected a model that "
            "differs only in image_size, patch_size, channels, classes, pool and head");
  EXPECT_EQ(error(begun({"model.distillation_token=true"})),
            "[weights.finetune] the model's distillation_token is true, but that of the weights is false: "
            "expected a model that differs only in image_size, patch_size, channels, classes, pool and head");
  EXPECT_EQ(error(begun({"model.classes=5", "train.init_head=keep"})),
            "[weights.finetune] the model has 5 classes, but the head that is kept has 7: expected as many "
            "classes; choose another start of the head");
  const std::string message = error({"train.init_from=/nowhere/at/all.npz"});
  EXPECT_NE(message.find("/nowhere/at/all.npz"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera::train
