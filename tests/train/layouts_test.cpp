// SPDX-License-Identifier: Apache-2.0
// The same numbers at any layout: ranks x accumulation x recompute, initial values, resume, for the real ViT
// with dropout and drop-path on.
#include <atomic>
#include <cmath>
#include <limits>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/loop/evaluation.h"

namespace tessera::train {
namespace {

TEST(Layouts, InitialWeightsAreBitwiseEqual) {
  const Parameters expected = train_layout(1, {}, 0).parameters;
  for (const int64_t world : {2, 3, 4}) {
    const Parameters found = train_layout(world, {}, 0).parameters;
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(found.at(name))) << name;
  }
}

class LayoutTable : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, bool>> {};

// fp32. Sums over samples are split differently, nothing else: the first loss is equal to rounding, and the
// curve stays within 1e-5 over 4 steps of Adam.
TEST_P(LayoutTable, LossCurveEqualsOneRank) {
  const auto [world, accumulation, recompute] = GetParam();
  static const Curve expected = train_layout(1, {}, 4);
  const Curve found = train_layout(
      world,
      {concat("train.accumulation=", accumulation), concat("shard.recompute=", recompute ? "true" : "false")},
      4);
  EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
  expect_close(found, expected, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LayoutTable,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 2, 4),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return concat("ranks_", std::get<0>(info.param), "_accumulation_",
                                         std::get<1>(info.param),
                                         std::get<2>(info.param) ? "_recompute" : "");
                         });

// Partners in one micro-batch and, with micro-batches of 3, in two.
TEST(Layouts, MixedImagesAndLabelsAreTheSame) {
  const std::vector<std::string> mixing = {"train.mixup=0.8", "train.cutmix=1.0", "train.mix_mode=elem",
                                           "data.auto_augment=rand-m9-mstd0.5-inc1", "data.erasing=0.25"};
  const Curve expected = train_layout(1, mixing, 3);
  for (const auto& [world, accumulation] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 16}, {2, 2}, {4, 4}}) {
    std::vector<std::string> sets = mixing;
    sets.push_back(concat("train.accumulation=", accumulation));
    const Curve found = train_layout(world, sets, 3);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
    expect_close(found, expected, 1e-5);
  }
  EXPECT_NE(expected.losses, train_layout(1, {}, 3).losses);
}

TEST(Layouts, LevelsAndSgdLikeAccumulationAgree) {
  const Curve expected = train_layout(1, {}, 4);
  for (const char* level : {"replicate", "zero1", "zero2"}) {
    SCOPED_TRACE(level);
    expect_close(train_layout(2, {concat("shard.level=", level), "train.accumulation=2"}, 4), expected, 1e-5);
  }
}

// Blocks 0 to 19 replicated, 20 to 31 sharded and computed again.
TEST(Layouts, LevelsOfSingleUnitsAgree) {
  const std::string deep = "model.depth=32";
  const Curve expected = train_layout(1, {deep}, 2);
  const Curve mixed =
      train_layout(2, {deep, "shard.units=blocks.0-19=replicate, blocks.20-31=zero3+recompute"}, 2);
  expect_close(mixed, expected, 1e-5);
}

TEST(Layouts, ABatchThatImagesOfARankDoNotDivideIsRefused) {
  try {
    train_layout(3, {"train.batch=50", "train.batch_per_rank=16"}, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("50"), std::string::npos) << error.what();
  }
}

// A single rank's AdamW reads gradients as backward made them, in bf16: the same numbers as widened before,
// in losses, norms and weights. Nothing is added to such a gradient.
TEST(Layouts, GradientsInBf16AreBitwiseThoseWidenedBefore) {
  const auto allow = [](bool as_made) {
    return [as_made](TrainState& state, mesh::Mesh&) {
      for (const auto& unit : state.sharded->units()) unit->allow_gradient_as_made(as_made);
    };
  };
  const std::vector<std::string> sets = {"precision.compute=bf16"};
  const Curve found = train_layout(1, sets, 4, allow(true)),
              expected = train_layout(1, sets, 4, allow(false));
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  for (const auto& [name, tensor] : expected.parameters)
    EXPECT_TRUE(tensor.equal(found.parameters.at(name))) << name;

  const auto dtype_of = [](const std::string& accumulation, const std::string& optimizer, int64_t world,
                           int passes = 1) {
    at::ScalarType dtype = at::kByte;
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe(
          {"precision.compute=bf16", "train.accumulation=" + accumulation, "optimizer.name=" + optimizer});
      const auto state = assemble(recipe, make_plan(recipe, world), mesh, true);
      const at::Tensor images =
          at::randn({2, recipe.model.channels(), recipe.model.image_size(), recipe.model.image_size()});
      for (int64_t micro = 1; micro <= passes * std::stoll(accumulation); ++micro) {
        const at::Tensor loss = state->sharded->forward(images).to(at::kFloat).square().sum();
        state->sharded->backward(loss, micro % std::stoll(accumulation) == 0);
      }
      if (mesh.rank() == 0) dtype = state->sharded->units()[1]->gradient().scalar_type();
    });
    return dtype;
  };
  EXPECT_EQ(dtype_of("1", "adamw", 1), at::kBFloat16);
  EXPECT_EQ(dtype_of("2", "adamw", 1), at::kFloat) << "a sum";
  EXPECT_EQ(dtype_of("1", "adamw", 2), at::kFloat) << "a sum";
  EXPECT_EQ(dtype_of("1", "adamw", 1, 2), at::kFloat) << "a second one after the first was complete";
  EXPECT_EQ(dtype_of("1", "lion", 1), at::kFloat) << "reads float32";
}

// Recompute and the plain pass differ in no bit, dropout and drop-path included.
TEST(Layouts, RecomputeIsBitwise) {
  const Curve plain = train_layout(2, {}, 4), again = train_layout(2, {"shard.recompute=true"}, 4);
  EXPECT_EQ(plain.losses, again.losses);
  EXPECT_EQ(plain.norms, again.norms);
  for (const auto& [name, tensor] : plain.parameters)
    EXPECT_TRUE(tensor.equal(again.parameters.at(name))) << name;
}

// LAMB's norms are those of whole tensors, wherever their parts lie.
TEST(Layouts, LambIsTheSameOnAnyRanksAndLevels) {
  const std::vector<std::string> lamb = {"optimizer.name=lamb", "optimizer.lr=3e-2"};
  const Curve expected = train_layout(1, lamb, 4);
  EXPECT_NE(expected.losses.back(), train_layout(1, {"optimizer.lr=3e-2"}, 4).losses.back());
  for (const auto& [world, level] :
       {std::pair<int64_t, const char*>{2, "zero3"}, {3, "zero1"}, {2, "replicate"}}) {
    SCOPED_TRACE(concat(world, " ranks, ", level));
    auto sets = lamb;
    sets.push_back(concat("shard.level=", level));
    expect_close(train_layout(world, sets, 4), expected, 1e-5);
  }
}

// State in the host's memory is the same state.
TEST(Layouts, OffloadIsBitwise) {
  for (const int64_t world : {1, 2}) {
    const Curve here = train_layout(world, {}, 4);
    for (const char* offload : {"optimizer", "all"}) {
      const Curve there = train_layout(world, {concat("shard.offload=", offload), "shard.recompute=true"}, 4);
      SCOPED_TRACE(concat(world, " ranks, ", offload));
      EXPECT_EQ(here.losses, there.losses);
      EXPECT_EQ(here.norms, there.norms);
      for (const auto& [name, tensor] : here.parameters)
        EXPECT_TRUE(tensor.equal(there.parameters.at(name))) << name;
    }
  }
}

/// 3 steps on `world_before` ranks, a checkpoint, 3 more on `world_after`.
Curve train_with_resume(int64_t world_before, int64_t world_after,
                        const std::vector<std::string>& sets = {}) {
  const TemporaryFolder folder("tessera-resume");
  Curve result;
  testing::run_ranks({{"shard", world_before}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, world_before), mesh, true);
    Curve curve;
    train_until(*state, mesh, 3, curve);
    train::save_state(*state, mesh, folder.path(), false);
    if (mesh.rank() == 0) result = curve;
  });
  testing::run_ranks({{"shard", world_after}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, world_after), mesh, true);
    train::load_state(*state, *checkpoint::find(folder.path(), "latest"));
    Curve curve;
    train_until(*state, mesh, 6, curve);
    if (mesh.rank() != 0) return;
    result.losses.insert(result.losses.end(), curve.losses.begin(), curve.losses.end());
    result.norms.insert(result.norms.end(), curve.norms.begin(), curve.norms.end());
    result.parameters = curve.parameters;
  });
  return result;
}

TEST(Resume, OnTheSameRanksIsBitwise) {
  const Curve straight = train_layout(2, {}, 6), resumed = train_with_resume(2, 2);
  EXPECT_EQ(straight.losses, resumed.losses);
  for (const auto& [name, tensor] : straight.parameters)
    EXPECT_TRUE(tensor.equal(resumed.parameters.at(name))) << name;
}

// Whatever an optimizer keeps is saved.
TEST(Resume, OfEveryOptimizerIsBitwise) {
  for (const char* name : {"adam", "sgd", "lamb", "lars", "lion", "adafactor", "muon"}) {
    // Wide enough for Adafactor's rows and columns.
    const std::vector<std::string> sets = {concat("optimizer.name=", name), "model.width=48"};
    const Curve straight = train_layout(2, sets, 6), resumed = train_with_resume(2, 2, sets);
    EXPECT_EQ(straight.losses, resumed.losses) << name;
    for (const auto& [parameter, tensor] : straight.parameters)
      EXPECT_TRUE(tensor.equal(resumed.parameters.at(parameter))) << name << " " << parameter;
  }
}

// Muon keeps a second moment of what AdamW's rule updates.
TEST(Muon, UpdatesTheMatricesOfTheBlocks) {
  const recipe::Recipe recipe = make_recipe({"optimizer.name=muon"});
  const auto mesh = mesh::Mesh::pretend(0, {});
  const auto state = assemble(recipe, make_plan(recipe, 1), *mesh, true);
  StateShards shards;
  state->optimizer->append_shards(shards);
  const auto has_second_moment = [&](const std::string& name) {
    return std::ranges::count(shards.list(), "muon.exp_avg_sq/" + name, &checkpoint::TensorShard::name) == 1;
  };
  int64_t matrices = 0;
  for (const arch::ParameterSpec& spec : arch::parameters(recipe.model)) {
    const bool is_muons = spec.name.starts_with("blocks.") && spec.shape.size() == 2;
    EXPECT_EQ(has_second_moment(spec.name), !is_muons) << spec.name;
    matrices += is_muons ? 1 : 0;
  }
  EXPECT_EQ(matrices, 3 * 4);
}

TEST(Resume, OnOtherRanksFollowsTheSameCurve) {
  const Curve straight = train_layout(2, {}, 6);
  for (const auto& [before, after] : {std::pair<int64_t, int64_t>{2, 1}, {1, 3}, {4, 2}}) {
    SCOPED_TRACE(concat(before, " -> ", after));
    expect_close(train_with_resume(before, after), straight, 2e-5);
  }
}

TEST(Resume, FromAnEarlierStepLeavesTheOtherBranch) {
  const TemporaryFolder folder("tessera-resume");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe();
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    for (state->step = 1; state->step <= 3; ++state->step)
      train::save_state(*state, mesh, folder.path(), state->step == 3);
    checkpoint::set_aside_after(folder.path(), 2);
    EXPECT_EQ(checkpoint::find(folder.path(), "latest")->filename(), "step_00000002");
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "abandoned_step_00000003" / "manifest.json"));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "best.json"));
  });
}

/// Runs the loop on one rank; the steps that were evaluated.
std::vector<int64_t> evaluated_steps(TrainState& state, mesh::Mesh& mesh,
                                     const std::filesystem::path& run_dir,
                                     const std::function<bool()>& stop) {
  const recipe::Recipe& recipe = state.recipe;
  const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
  Log log(false);
  data::LoaderOptions options = loader_options(recipe, {}, 1, log);
  const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, 1);
  options.batch = sizes.batch;
  const recipe::StepCounts counts = recipe::count_steps(recipe, source->size(), sizes.batch);
  monitor::Monitor monitor({run_dir, counts.total, 1, state.step > 0, state.step, 0}, log);
  train::run(state, {*source, *source, sizes, counts, options, run_dir / "checkpoints", stop}, mesh, &monitor,
             log);
  std::vector<int64_t> steps;
  for (const auto& metrics : monitor.evals()) steps.push_back(metrics.step);
  return steps;
}

TEST(Resume, AnEvaluationCutShortIsMadeUp) {
  const TemporaryFolder folder("tessera-resume");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"train.eval_every_steps=2", "checkpoint.every_steps=100"});
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    int asked = 0;  // once in each step, then by the evaluation after the second
    EXPECT_EQ(evaluated_steps(*state, mesh, folder.path(), [&] { return ++asked > 2; }),
              std::vector<int64_t>());
    const auto resumed = assemble(recipe, make_plan(recipe, 1), mesh, true);
    train::load_state(*resumed, *checkpoint::find(folder.path() / "checkpoints", "latest"));
    EXPECT_EQ(resumed->step, 2);
    EXPECT_EQ(evaluated_steps(*resumed, mesh, folder.path(), [] { return false; }),
              (std::vector<int64_t>{2, 4, 6}));
  });
}

// What summary.json says is then what other programs find in the weights.
TEST(Evaluation, TheLastIsInFloat32WhereAsked) {
  at::set_num_threads(1);
  for (const int64_t world : {1, 2}) {
    const TemporaryFolder folder("tessera-final");
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const std::vector<std::string> sets = {"train.eval_every_epochs=0", "ema.decay=0.5", "train.steps=4"};
      const auto evaluation_of = [&](TrainState& state, const recipe::Recipe& recipe) {
        const auto source = data::open_source(recipe.data.source, "train", source_options(recipe));
        Log log(false);
        launch::Ranks ranks;
        ranks.rank = mesh.rank();
        ranks.world = world;
        data::LoaderOptions options = loader_options(recipe, ranks, 1, log);
        const recipe::BatchSizes sizes = recipe::resolve_batch(recipe.train, world);
        options.batch = sizes.batch;
        const recipe::StepCounts counts = recipe::count_steps(recipe, source->size(), sizes.batch);
        return train::run(state,
                          {*source, *source, sizes, counts, options, folder.path(), [] { return false; }},
                          mesh, nullptr, log)
            .last.metrics;
      };
      const auto recipe_with = [&](const char* compute, const char* last) {
        std::vector<std::string> all = sets;
        all.push_back(concat("precision.compute=", compute));
        all.push_back(concat("precision.final_evaluation=", last));
        return make_recipe(all);
      };
      const recipe::Recipe trained = recipe_with("bf16", "fp32"), narrow = recipe_with("bf16", "auto"),
                           wide = recipe_with("fp32", "auto");
      const auto state = assemble(trained, make_plan(trained, world), mesh, true);
      const monitor::EvalMetrics last = evaluation_of(*state, trained);
      const auto again = [&](const recipe::Recipe& recipe) {
        const auto saved = assemble(recipe, make_plan(recipe, world), mesh, true);
        train::load_state(*saved, *checkpoint::find(folder.path(), "latest"));
        return evaluation_of(*saved, recipe);
      };
      const monitor::EvalMetrics in_fp32 = again(wide), in_bf16 = again(narrow);
      EXPECT_EQ(last.loss, in_fp32.loss);
      EXPECT_EQ(last.loss_ema, in_fp32.loss_ema);
      EXPECT_NE(last.loss, in_bf16.loss);
    });
  }
}

TEST(Evaluation, BeforeTheFirstStepWhereAsked) {
  const TemporaryFolder folder("tessera-first");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    for (const bool first : {false, true}) {
      const recipe::Recipe recipe = make_recipe(
          {"train.eval_every_steps=3", first ? "train.eval_first=true" : "train.eval_first=false"});
      const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
      const std::vector<int64_t> expected =
          first ? std::vector<int64_t>{0, 3, 6} : std::vector<int64_t>{3, 6};
      EXPECT_EQ(evaluated_steps(*state, mesh, folder.path() / (first ? "a" : "b"), [] { return false; }),
                expected);
    }
  });
}

TEST(Resume, AnotherModelIsNamed) {
  const TemporaryFolder folder("tessera-resume");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe();
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    train::save_state(*state, mesh, folder.path(), false);
    const recipe::Recipe other = make_recipe({"model.width=32"});
    const auto wider = assemble(other, make_plan(other, 1), mesh, true);
    try {
      train::load_state(*wider, *checkpoint::find(folder.path(), "latest"));
      FAIL();
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("24"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("32"), std::string::npos) << error.what();
    }
    // A shallower model would find all it asks for.
    const recipe::Recipe shallow = make_recipe({"model.depth=2"});
    const auto part = assemble(shallow, make_plan(shallow, 1), mesh, true);
    try {
      train::load_state(*part, *checkpoint::find(folder.path(), "latest"));
      FAIL();
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("does not match this model: blocks.2."), std::string::npos)
          << error.what();
    }
  });
}

// One bad number on one rank: the same one-line error on every rank, with a tensor's name.
TEST(Numbers, AreNeverSilentlyNotFinite) {
  std::atomic<int> told = 0;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe();
    const auto state = assemble(recipe, make_plan(recipe, 2), mesh, true);
    if (mesh.rank() == 1) {
      at::Tensor master = state->sharded->units().at(1)->shards().back().master;
      ASSERT_GT(master.numel(), 0);
      master.fill_(std::numeric_limits<float>::infinity());
      state->sharded->parameters_changed();
    }
    Curve curve;
    try {
      train_until(*state, mesh, 1, curve);
    } catch (const UserError& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("[train.step] the gradient of ")) << message;
      EXPECT_NE(message.find(" is not finite in step 1 (loss "), std::string::npos) << message;
      ++told;
    }
  });
  EXPECT_EQ(told, 2);
}

TEST(Evaluation, CountsEverySampleOnAnyRanks) {
  std::vector<double> losses;
  std::vector<std::vector<std::vector<int64_t>>> confusions;
  std::vector<std::vector<int64_t>> worst;
  for (const auto& [world, tensor] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {3, 1}, {5, 1}, {2, 2}, {4, 2}, {3, 3}}) {
    const recipe::Recipe recipe = make_recipe({"data.source=fake:101", concat("parallel.tensor=", tensor)});
    run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
      const auto state = assemble(recipe, plan, mesh, false);
      const Evaluation result = evaluate_validation(*state, mesh, {.batch = 8, .keep_mistakes = 10});
      EXPECT_EQ(result.metrics.samples, 101);
      int64_t counted = 0;
      for (const auto& row : result.figures.confusion) {
        for (const int64_t count : row) counted += count;
      }
      EXPECT_EQ(counted, 101);
      std::vector<int64_t> mistakes;
      for (const auto& mistake : result.mistakes) mistakes.push_back(mistake.sample);
      EXPECT_EQ(mistakes.size(), 10U);
      if (mesh.rank() != 0) return;
      losses.push_back(result.metrics.loss);
      confusions.push_back(result.figures.confusion);
      worst.push_back(mistakes);
    });
  }
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6);
  for (const auto& confusion : confusions) EXPECT_EQ(confusion, confusions[0]);
  for (const auto& mistakes : worst) EXPECT_EQ(mistakes, worst[0]);
}

/// A source that lists one class after the other, as folders do: 70 of class 0, 20 of class 1, 10 of class 2.
class OneClassAfterTheOther : public data::Source {
 public:
  int64_t size() const override { return 100; }
  int64_t label(int64_t i) const override { return i < 70 ? 0 : i < 90 ? 1 : 2; }
  data::Stored load(int64_t) const override { return {}; }
  std::string sample_name(int64_t i) const override { return std::to_string(i); }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  std::vector<std::string> classes_ = {"a", "b", "c"};
};

TEST(Evaluation, SamplesToShowHaveEachClassesShare) {
  const OneClassAfterTheOther source;
  for (const int64_t count : {10, 20, 50, 100, 200}) {
    const auto shown = spread_samples(source, count);
    ASSERT_EQ(static_cast<int64_t>(shown.size()), std::min<int64_t>(count, 100));
    std::vector<int64_t> of_class(3);
    for (const int64_t sample : shown) ++of_class[static_cast<size_t>(source.label(sample))];
    const auto of = static_cast<int64_t>(shown.size());
    EXPECT_EQ(of_class, (std::vector<int64_t>{of * 7 / 10, of * 2 / 10, of / 10})) << count;
    EXPECT_EQ(std::set<int64_t>(shown.begin(), shown.end()).size(), shown.size()) << "each once";
  }
  EXPECT_TRUE(spread_samples(source, 0).empty());
}

/// What is shown does not depend on the ranks, and its share of right answers is that of those very samples.
TEST(Evaluation, ShowsTheSameImagesOnAnyRanks) {
  std::vector<std::vector<std::string>> shown;
  for (const int64_t world : {1, 2, 3}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const recipe::Recipe recipe = make_recipe({"data.source=fake:101"});
      const auto state = assemble(recipe, make_plan(recipe, world), mesh, false);
      const auto source = data::open_source(recipe.data.source, "val", source_options(recipe));
      Log log(false);
      EvaluateOptions options;
      options.batch = 8;
      options.keep_samples = 14;
      const Evaluation result =
          train::evaluate(*state, *source, loader_options(recipe, launch::Ranks{}, 1, log), options, mesh);
      EXPECT_EQ(result.samples.size(), mesh.rank() == 0 ? 14U : 0U);
      if (mesh.rank() != 0) return;
      auto& texts = shown.emplace_back();
      for (size_t i = 0; i < result.samples.size(); ++i) {
        const auto& sample = result.samples[i];
        texts.push_back(concat(sample.truth, " ", sample.prediction));
        const int64_t index = spread_samples(*source, 14)[i];
        EXPECT_EQ(sample.truth, source->classes()[static_cast<size_t>(source->label(index))]);
        EXPECT_EQ(sample.pixels, source->read(index, recipe.model.channels()).pixels) << i;
      }
      std::set<std::string> truths;
      for (const auto& sample : result.samples) truths.insert(sample.truth);
      EXPECT_EQ(truths.size(), 7U) << "two of each of seven classes";
    });
  }
  for (const auto& texts : shown) EXPECT_EQ(texts, shown[0]);
}

}  // namespace
}  // namespace tessera::train
