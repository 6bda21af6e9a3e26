// SPDX-License-Identifier: Apache-2.0
// Learning from another network: the loss against its formula, the teacher's answers against its own, and the
// same numbers on any ranks.
#include "tessera/eager/teacher.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "../error_text.h"
#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/eager/loss.h"

namespace tessera::train {
namespace {

at::Tensor formula_logits(double phase) {
  return (at::arange(5 * 7, at::kDouble).view({5, 7}) * 1.7 + phase).sin() * 3;
}

// Hinton's: T^2 sum q (log q - log p); its gradient is T (p - q).
TEST(Distillation, SoftIsTheDivergence) {
  const at::Tensor teacher = formula_logits(0.4);
  for (const double t : {1.0, 3.0}) {
    at::Tensor student = formula_logits(0).requires_grad_(true);
    recipe::DistillRecipe options;
    options.temperature = t;
    const at::Tensor loss = distillation_sum(student, teacher, options);
    const at::Tensor p = (student / t).softmax(1), q = (teacher / t).softmax(1);
    EXPECT_NEAR(loss.item<double>(), (t * t * (q * (q.log() - p.log())).sum()).item<double>(), 1e-9);
    const at::Tensor gradient = torch::autograd::grad({loss}, {student})[0];
    EXPECT_LE((gradient - t * (p - q)).abs().max().item<double>(), 1e-9);
    EXPECT_NEAR(distillation_sum(teacher, teacher, options).item<double>(), 0, 1e-9);
  }
}

TEST(Distillation, HardIsTheTeachersFirstChoice) {
  const at::Tensor student = formula_logits(0), teacher = formula_logits(0.4);
  recipe::DistillRecipe options;
  options.kind = "hard";
  const at::Tensor wanted = -student.log_softmax(1).gather(1, teacher.argmax(1, /*keepdim=*/true)).sum();
  EXPECT_NEAR(distillation_sum(student, teacher, options).item<double>(), wanted.item<double>(), 1e-9);
}

TEST(Distillation, AlphaIsTheTeachersShareAndEachHeadHasItsOwnTarget) {
  data::Batch batch;
  batch.size = 5;
  batch.labels = {3, 0, 6, 6, 1};
  const at::Tensor a = formula_logits(0), b = formula_logits(1), teacher = formula_logits(0.4);
  recipe::Recipe recipe;
  recipe.train.label_smoothing = 0.1;
  recipe.distill.alpha = 0.3;
  const auto targets = [&](const at::Tensor& x) { return cross_entropy_sum(x, batch, 0.1); };
  const auto teacher_logits = [&](const at::Tensor& x) {
    return distillation_sum(x, teacher, recipe.distill);
  };
  const auto expect = [&](const at::Tensor& found, const at::Tensor& wanted) {
    EXPECT_NEAR(found.item<double>(), wanted.item<double>(), 1e-9);
  };
  expect(loss_sum(a, batch, recipe), targets(a));
  expect(loss_sum(a, batch, recipe, teacher), 0.7 * targets(a) + 0.3 * teacher_logits(a));
  recipe.model.as<arch::VitConfig>().distillation_token = true;
  const at::Tensor both = at::cat({a, b}, 1);
  expect(loss_sum(both, batch, recipe, teacher), 0.7 * targets(a) + 0.3 * teacher_logits(b));
  expect(loss_sum(both, batch, recipe), targets((a + b) / 2));
}

/// A teacher of its own pixels, trained for two steps and saved.
class Taught : public ::testing::Test {
 protected:
  void SetUp() override { save(folder.path(), {"train.seed=9", "data.mean=[0.4]", "data.std=[0.5]"}); }

  static void save(const std::filesystem::path& where, const Sets& sets) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe(sets);
      const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
      Curve curve;
      train_until(*state, mesh, 2, curve);
      train::save_state(*state, mesh, where, false);
    });
  }
  Sets teacher_logits(Sets sets = {}) const {
    sets.push_back(concat("distill.teacher=", folder.path().string()));
    sets.emplace_back("distill.temperature=2");
    return sets;
  }
  static Curve train(int64_t world, const Sets& sets, int64_t steps = 4) {
    Log log(false);
    return train_layout(world, sets, steps, [&](TrainState& state, mesh::Mesh& mesh) {
      state.teacher = std::make_shared<Teacher>(state.recipe, mesh, log);
    });
  }

  const TemporaryFolder folder{"tessera-teacher"};
};

TEST_F(Taught, TheTeacherSeesItsOwnPixelsAndAnswersAsInEvaluation) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(teacher_logits());
    Log log(false);
    Teacher teacher(recipe, mesh, log);
    const recipe::Recipe own = make_recipe({"data.mean=[0.4]", "data.std=[0.5]"});
    const auto state = assemble(own, make_plan(own, 2), mesh, false);
    train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
    data::Batch batch = placeholder_batch(*state);
    for (size_t i = 0; i < batch.images.size(); ++i) {
      batch.images[i] =
          static_cast<float>(std::sin(0.1 * static_cast<double>(i)));  // as the teacher likes it
    }
    const at::NoGradGuard no_grad;
    const at::Tensor wanted = forward(*state, batch, false, 0);
    const auto& student = recipe.data.transform;
    const size_t pixels = batch.images.size() / 3;
    for (size_t i = 0; i < batch.images.size(); ++i) {
      const float value = batch.images[i] * 0.5F + 0.4F;
      batch.images[i] = (value - student.mean[i / pixels]) / student.std[i / pixels];
    }
    EXPECT_TRUE(teacher.logits(state->input->with_images(batch), true).allclose(wanted, 1e-4, 1e-5));
    EXPECT_FALSE(teacher.logits(state->input->with_images(batch), false).defined());
  });
}

TEST_F(Taught, TheSameNumbersOnAnyRanks) {
  const Curve expected = train(1, teacher_logits());
  EXPECT_NE(expected.losses, train_layout(1, {}, 4).losses);
  for (const auto& [world, sets] :
       std::vector<std::pair<int64_t, Sets>>{{1, {"train.accumulation=4"}},
                                             {2, {}},
                                             {3, {"train.accumulation=2"}},
                                             {2, {"shard.level=zero1", "shard.recompute=true"}},
                                             {2, {"shard.units=\"blocks.0=replicate\""}},
                                             {4, {"parallel.tensor=2", "train.accumulation=2"}}}) {
    SCOPED_TRACE(concat(world, " ranks ", sets.empty() ? "" : sets[0]));
    expect_close(train(world, teacher_logits(sets)), expected, 1e-5);
  }
}

TEST_F(Taught, ADistillationTokenOnAnyRanks) {
  const Sets token = teacher_logits({"model.distillation_token=true", "distill.kind=hard"});
  const Curve expected = train(1, token);
  for (const int64_t world : {2, 3}) expect_close(train(world, token), expected, 1e-5);
  Sets cut = token;
  cut.emplace_back("parallel.tensor=2");
  expect_close(train(4, cut), expected, 1e-5);
  EXPECT_FALSE(expected.parameters.at("head_dist.weight").equal(expected.parameters.at("head.weight")));
}

TEST_F(Taught, ARankWithoutSamplesHelps) {
  // An epoch of 96 is four steps of 21 and one of 12: on 3 ranks 7, 5 and none.
  const Sets keep = teacher_logits({"data.remainder=keep", "train.batch=21"});
  const Curve expected = train(1, keep, 5);
  expect_close(train(3, keep, 5), expected, 2e-5);
  Sets cut = keep;
  cut.emplace_back("parallel.tensor=3");
  expect_close(train(3, cut, 5), expected, 2e-5);
}

// What it already knows a student need not learn: with the teacher's own weights the divergence is nothing.
TEST_F(Taught, AStudentWithTheTeachersWeightsHasNothingToLearn) {
  const Sets still = teacher_logits(
      {"distill.alpha=1", "model.dropout=0", "model.drop_path=0", "data.mean=[0.4]", "data.std=[0.5]"});
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(still);
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, false);
    train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
    Log log(false);
    Teacher teacher(recipe, mesh, log);
    data::Batch batch = placeholder_batch(*state);
    batch.images[5] = 1;
    const at::NoGradGuard no_grad;
    const at::Tensor logits = forward(*state, batch, true, 0);
    EXPECT_NEAR(loss_sum(logits, batch, recipe, teacher.logits(state->input->with_images(batch), true))
                    .item<double>(),
                0, 1e-6);
  });
}

TEST_F(Taught, WhatDoesNotFitIsNamed) {
  const auto message = [&](const Sets& sets) {
    return error_text([&] { train(1, teacher_logits(sets), 0); });
  };
  const std::string origin = (folder.path() / "step_00000002").string() + " (step 2)";
  EXPECT_EQ(message({"model.classes=5"}),
            concat("[train.teacher] the teacher ", origin, " has 7 classes: expected 5, as its student"));
  EXPECT_EQ(message({"model.image_size=32"}), concat("[train.teacher] the teacher ", origin,
                                                     " has 16 pixels a side: expected 32, as its student"));
  EXPECT_EQ(message({"model.channels=1"}),
            concat("[train.teacher] the teacher ", origin, " has 3 channels: expected 1, as its student"));
}

}  // namespace
}  // namespace tessera::train
