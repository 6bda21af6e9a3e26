// SPDX-License-Identifier: Apache-2.0
// The moving average of the weights: its formula, at any layout, across a resume; and groups of parameters.
#include "tessera/optim/ema.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "given_gradients.h"
#include "small_run.h"
#include "tessera/base/file.h"

namespace tessera::train {
namespace {

class Average : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }  // ranks are threads already
};

const std::vector<std::string> kAveraged = {"ema.decay=0.6", "ema.warmup=true"};

Parameters averages(TrainState& state, mesh::Mesh& mesh) {
  state.ema->exchange(*state.sharded);
  Parameters found = parameters_of(state, mesh);
  state.ema->exchange(*state.sharded);
  return found;
}

struct Averaged {
  Curve curve;
  Parameters average;
  int64_t updates = 0;
};

/// Trains to step `until`, from what is in the folder where it resumes; saves into it where there is one.
Averaged train_averaged(int64_t world, const std::filesystem::path& folder, bool resume, int64_t until,
                        const std::vector<std::string>& sets = kAveraged) {
  at::set_num_threads(1);
  Averaged result;
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (resume) train::load_state(*state, *checkpoint::find(folder, "latest"));
    Averaged run;
    train_until(*state, mesh, until, run.curve);
    run.average = averages(*state, mesh);
    run.updates = state->ema->updates();
    if (!folder.empty()) train::save_state(*state, mesh, folder, false);
    if (mesh.rank() == 0) result = run;
  });
  return result;
}

// timm 1.0.31: ModelEmaV3(decay=0.9999, use_warmup=True).get_decay(step)
TEST_F(Average, WarmupIsTimms) {
  recipe::EmaRecipe options{0.9999, true, 1};
  const std::vector<std::pair<int64_t, double>> timm = {
      {1, 0.0},     {2, 0.3700394750525634}, {10, 0.7845565309968117},
      {1000, 0.99}, {1000000, 0.9999},       {2000000, 0.9999}};
  for (const auto& [update, decay] : timm) EXPECT_NEAR(ema_decay(options, update), decay, 1e-12) << update;
  options.warmup = false;
  EXPECT_EQ(ema_decay(options, 1), 0.9999);
}

/// The whole average after 50 updates, which follow weights of a formula.
Values average_of_given(int64_t world, const recipe::EmaRecipe& options) {
  at::set_num_threads(1);
  Values result;
  testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
    const at::NoGradGuard no_grad;
    const auto model = given_model(mesh, plan::Level::kZero3);
    const auto put = [&](const auto& value) {
      over_pieces(*model, [&](const shard::Shard& shard, const GivenParameter& parameter) {
        put_part(shard.master, value(parameter), shard);
      });
    };
    put(start_value);
    Ema ema(*model, options);
    for (int64_t step = 1; step <= kGivenSteps; ++step) {
      put([&](const GivenParameter& parameter) {
        return start_value(parameter) + given_gradient(parameter, step) * (0.1 * static_cast<double>(step));
      });
      ema.follow(step);
    }
    ema.exchange(*model);
    const Values whole = whole_parameters(*model);
    if (mesh.rank() == 0) result = whole;
  });
  return result;
}

// timm 1.0.31's ModelEmaV3 (make_average_fixture.py).
TEST_F(Average, IsTimmsOver50Updates) {
  const auto fixture = nlohmann::json::parse(
      std::ifstream(std::string(TESSERA_SOURCE_DIR) + "/tests/train/fixtures/average.json"));
  const int64_t every = fixture.at("every");
  ASSERT_EQ(fixture.at("averages").size(), 3U);
  for (const auto& average : fixture.at("averages")) {
    const recipe::EmaRecipe options{average.at("decay"), average.at("warmup"), 1};
    for (const int64_t world : {1, 3}) {
      const Values found = average_of_given(world, options);
      double worst = 0, moved = 0;
      for (const auto& given : given_parameters()) {
        const auto expected = average.at("values").at(given.name).get<std::vector<double>>();
        const at::Tensor start = start_value(given), end = found.at(given.name).view({-1});
        ASSERT_EQ(static_cast<int64_t>(expected.size()), (numel_of(given) + every - 1) / every);
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto at = static_cast<int64_t>(i) * every;
          worst = std::max(worst, std::abs(end[at].item<double>() - expected[i]));
          moved = std::max(moved, std::abs(start[at].item<double>() - expected[i]));
        }
      }
      EXPECT_GT(moved, 1e-3);
      EXPECT_LE(worst, 1e-6);
      std::printf("decay %g%s, %ld ranks: largest difference %.2g\n", options.decay,
                  options.warmup ? " with warmup" : "", static_cast<long>(world), worst);
    }
  }
}

TEST_F(Average, IsItsFormula) {
  Parameters expected;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"ema.decay=0.6", "ema.every=2"});
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    expected = gather_parameters(*state);
    for (int64_t step = 1; step <= 5; ++step) {
      Curve curve;
      train_until(*state, mesh, step, curve);
      if (step % 2 != 0) continue;
      for (auto& [name, tensor] : expected) tensor = 0.6 * tensor + 0.4 * curve.parameters.at(name);
    }
    EXPECT_EQ(state->ema->updates(), 2);
    const Parameters weights = gather_parameters(*state), found = averages(*state, mesh);
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(at::allclose(found.at(name), tensor, 1e-6, 1e-8)) << name;
      EXPECT_FALSE(found.at(name).equal(weights.at(name))) << name;
    }
    expect_equal(gather_parameters(*state), weights);  // exchanged twice
  });
}

// The average adds nothing to a run, and follows the weights wherever they lie. (SGD: Adam would enlarge the
// rounding of gradients that are nearly zero.)
TEST_F(Average, IsTheSameOnAnyRanks) {
  auto sets = kAveraged;
  sets.emplace_back("optimizer.name=sgd");
  const Averaged one = train_averaged(1, {}, false, 4, sets);
  EXPECT_EQ(one.curve.losses, train_layout(1, {"optimizer.name=sgd"}, 4).losses);
  for (const int64_t world : {2, 3}) {
    const Averaged found = train_averaged(world, {}, false, 4, sets);
    EXPECT_EQ(found.updates, 4);
    for (const auto& [name, tensor] : one.average) {
      EXPECT_LE((found.average.at(name) - tensor).abs().max().item<double>(), 1e-6) << name;
    }
  }
}

// Stages of one and of two blocks, cut layers, and the average, whose every value is on one rank of them.
TEST_F(Average, IsTheSameInStages) {
  auto sets = kAveraged;
  sets.emplace_back("optimizer.name=sgd");
  const Averaged one = train_averaged(1, {}, false, 4, sets);
  struct Layout {
    int64_t world;
    std::vector<std::string> sets;
  };
  const std::vector<Layout> layouts = {
      {2, {"parallel.pipeline=2", "parallel.micro_batches=2", "parallel.stages=[1, 2]"}},
      {4, {"parallel.pipeline=2", "parallel.micro_batches=4", "parallel.tensor=2"}},
      {6, {"parallel.pipeline=3", "parallel.micro_batches=3", "shard.level=zero3"}}};
  for (const auto& [world, layout] : layouts) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), layout.begin(), layout.end());
    const Parameters found = train_averaged(world, {}, false, 4, all).average;
    ASSERT_EQ(found.size(), one.average.size());
    for (const auto& [name, tensor] : one.average) {
      EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), 1e-6) << layout.back() << ' ' << name;
    }
  }
}

TEST_F(Average, ResumesBitwiseAndOnOtherRanks) {
  const Averaged straight = train_averaged(2, {}, false, 6);
  for (const int64_t after : {2, 1, 3}) {
    const TemporaryFolder folder("tessera-ema");
    const Averaged before = train_averaged(2, folder.path(), false, 3);
    const Averaged loaded = train_averaged(after, folder.path(), true, 3);
    expect_equal(loaded.average, before.average);
    EXPECT_EQ(loaded.updates, 3);
    const Averaged resumed = train_averaged(after, folder.path(), true, 6);
    EXPECT_EQ(resumed.updates, 6);
    if (after == 2) expect_equal(resumed.average, straight.average);
  }
}

TEST_F(Average, IsLoadedInThePlaceOfTheWeights) {
  const TemporaryFolder folder("tessera-ema");
  const Averaged run = train_averaged(2, folder.path(), false, 3);
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(kAveraged);
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, false);
    const auto checkpoint = *checkpoint::find(folder.path(), "latest");
    train::load_state(*state, checkpoint, Weights::kAverage);
    expect_equal(gather_parameters(*state), run.average);
    train::load_state(*state, checkpoint);
    expect_equal(gather_parameters(*state), run.curve.parameters);
  });
}

TEST_F(Average, StartsWhereACheckpointHasNone) {
  const TemporaryFolder folder("tessera-ema");
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe plain = make_recipe();
    const auto state = assemble(plain, make_plan(plain, 1), mesh, true);
    Curve curve;
    train_until(*state, mesh, 2, curve);
    train::save_state(*state, mesh, folder.path(), false);
    const auto checkpoint = *checkpoint::find(folder.path(), "latest");
    const recipe::Recipe recipe = make_recipe(kAveraged);
    const auto averaged = assemble(recipe, make_plan(recipe, 1), mesh, true);
    train::load_state(*averaged, checkpoint);
    EXPECT_EQ(averaged->ema->updates(), 0);
    expect_equal(averages(*averaged, mesh), curve.parameters);
    try {
      train::load_state(*averaged, checkpoint, Weights::kAverage);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()), concat("[checkpoint.load] ", checkpoint.string(),
                                                  " has no moving average of the weights: expected a "
                                                  "checkpoint of a run with ema.decay above 0"));
    }
  });
}

// Frozen parameters stay as they were and are no part of the gradient's norm.
TEST(Groups, FrozenParametersStay) {
  const std::vector<std::string> frozen = {"optimizer.groups=['blocks.*: freeze', 'pos_embed: lr_scale=0.5']",
                                           "optimizer.weight_decay=0.1"};
  const Parameters start = train_layout(1, {}, 0).parameters;
  const Curve found = train_layout(1, frozen, 3);
  for (const auto& [name, tensor] : start) {
    EXPECT_EQ(tensor.equal(found.parameters.at(name)), name.starts_with("blocks.")) << name;
  }
  EXPECT_LT(found.norms[0], train_layout(1, {}, 1).norms[0]);
  expect_close(train_layout(2, frozen, 3), found, 1e-5);
}

TEST(Groups, LayerDecayShortensStepsTowardsTheFirstUnit) {
  const std::vector<std::string> sgd = {"optimizer.name=sgd", "optimizer.momentum=0", "train.clip=0",
                                        "schedule.warmup_steps=0", "optimizer.lr=0.1"};
  const auto step_of = [&](std::vector<std::string> sets) {
    sets.insert(sets.begin(), sgd.begin(), sgd.end());
    const Parameters start = train_layout(1, sets, 0).parameters;
    Parameters end = train_layout(1, sets, 1).parameters;
    for (auto& [name, tensor] : end) tensor = tensor - start.at(name);
    return end;
  };
  const Parameters plain = step_of({}), decayed = step_of({"optimizer.layer_decay=0.5"});
  // Five units: stem, three blocks, head.
  for (const auto& [name, scale] : std::map<std::string, double>{{"head.weight", 1},
                                                                 {"norm.weight", 1},
                                                                 {"blocks.2.mlp.fc2.weight", 0.5},
                                                                 {"blocks.0.mlp.fc2.weight", 0.125},
                                                                 {"pos_embed", 0.0625}}) {
    EXPECT_TRUE(at::allclose(decayed.at(name), plain.at(name) * scale, 1e-3, 1e-8)) << name;
  }
}

TEST(Groups, ThatMatchNothingStopTheRun) {
  try {
    train_layout(1, {"optimizer.groups=['heads.weight: freeze']"}, 0);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"head.weight\"?"), std::string::npos)
        << error.what();
  }
}

TEST(HeadBias, IsTheStart) {
  const Parameters start = train_layout(2, {"model.head_bias=-6.5", "loss.name=sigmoid"}, 0).parameters;
  EXPECT_TRUE(start.at("head.bias").equal(at::full({7}, -6.5)));
  expect_equal(train_layout(1, {"model.head_bias=-6.5"}, 0).parameters, start);
}

// On a broken group the exchange back would throw during unwinding, which ends the process without a word.
TEST_F(Average, IsNotExchangedBackWhileAnErrorIsUnderWay) {
  at::set_num_threads(1);
  testing::run_ranks({{"shard", 1}}, [](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe({"ema.decay=0.9"});
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    Curve curve;
    train_until(*state, mesh, 3, curve);
    const auto weights = [&] { return state->sharded->units().front()->master().clone(); };
    const at::Tensor trained = weights();
    at::Tensor average;
    {
      const StateEvaluator evaluator(*state, mesh, /*average=*/true, /*float32=*/false);
      average = weights();
    }
    EXPECT_FALSE(average.equal(trained));
    EXPECT_TRUE(weights().equal(trained));
    try {
      const StateEvaluator evaluator(*state, mesh, /*average=*/true, /*float32=*/false);
      throw CommError("a rank is gone");
    } catch (const CommError&) {
    }
    EXPECT_TRUE(weights().equal(average));
  });
}

}  // namespace
}  // namespace tessera::train
