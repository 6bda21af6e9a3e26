// SPDX-License-Identifier: Apache-2.0
// From the keys of [parallel] to a plan and to names of groups.
#include <unistd.h>

#include <filesystem>
#include <tuple>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/eager/trained_model.h"
#include "tests/error_text.h"

namespace tessera::train {
namespace {

using eager::use_any_ranks;

std::string axes_text(const std::vector<std::string>& sets, int64_t world, int64_t rank) {
  const recipe::Recipe recipe = make_recipe(sets);
  return mesh::Mesh::pretend(rank, mesh_axes(recipe, make_plan(recipe, world)))->describe();
}

TEST(ParallelRecipe, KeysAndRulesMakeThePlan) {
  const plan::Plan plan = make_plan(make_recipe({"parallel.tensor=2", "shard.ranks=2",
                                                 "shard.units=blocks.1=tensor4+strided+regather+zero1"}),
                                    8);
  const std::vector<plan::UnitPlan> expected = {
      {.name = "stem", .shard = 2},
      {.name = "blocks.0", .shard = 2, .layout = {2, true}, .keep_gathered = true},
      {.name = "blocks.1", .level = plan::Level::kZero1, .shard = 2, .layout = {4, false}},
      {.name = "blocks.2", .shard = 2, .layout = {2, true}, .keep_gathered = true},
      {.name = "head", .shard = 2}};
  EXPECT_EQ(plan.units, expected);
  const plan::Plan strided = make_plan(
      make_recipe({"parallel.tensor=4", "parallel.tensor_adjacent=false", "parallel.keep_gathered=false"}),
      8);
  EXPECT_EQ(strided.units[2], (plan::UnitPlan{.name = "blocks.1", .layout = {4, false}}));
  EXPECT_EQ(error_text([] { make_plan(make_recipe({"parallel.tensor=3"}), 8); }),
            "[plan.set_tensor] parallel.tensor is 3: expected a divisor of the 8 ranks that train");
}

// A rank's coordinates as messages show them.
TEST(ParallelRecipe, AxesAreNamedByTheGroupsOfCutUnits) {
  EXPECT_EQ(axes_text({"parallel.tensor=2"}, 8, 3), "rank 3/8 shard1 tensor1");
  EXPECT_EQ(axes_text({"parallel.tensor=2", "shard.ranks=2"}, 8, 6), "rank 6/8 dp1 shard1 tensor0");
  EXPECT_EQ(axes_text({"parallel.tensor=2", "parallel.tensor_adjacent=false"}, 8, 6),
            "rank 6/8 tensor1 shard2");
  EXPECT_EQ(axes_text({"parallel.tensor=2", "shard.level=replicate"}, 8, 3), "rank 3/8 dp1 tensor1");
  EXPECT_EQ(axes_text({"parallel.tensor=8"}, 8, 3), "rank 3/8 tensor3");
  EXPECT_EQ(axes_text({"shard.units=blocks.0=tensor2"}, 4, 3), "rank 3/4 shard1 tensor1");
  EXPECT_EQ(axes_text({"shard.units=blocks.0=tensor2, blocks.1=tensor4"}, 8, 5), "rank 5/8 dp5");
  EXPECT_EQ(axes_text({}, 4, 3), "rank 3/4 shard3");
  EXPECT_EQ(axes_text({"shard.ranks=2"}, 4, 3), "rank 3/4 dp1 shard1");
}

// Every group that the axes name is one that the plan uses.
TEST(ParallelRecipe, AxesAddNoGroups) {
  for (const char* level : {"zero3", "replicate"}) {
    for (const char* adjacent : {"true", "false"}) {
      const recipe::Recipe recipe = make_recipe({"parallel.tensor=2", concat("shard.level=", level),
                                                 concat("parallel.tensor_adjacent=", adjacent),
                                                 concat("shard.units=stem=zero3+ranks2")});
      const plan::Plan plan = make_plan(recipe, 8);
      const std::vector<plan::Span> spans = plan::spans_of(plan);
      const auto with = mesh::Mesh::pretend(0, mesh_axes(recipe, plan), spans);
      EXPECT_EQ(with->groups().size(), spans.size() + 1) << level << adjacent;  // and all ranks
    }
  }
}

class PlanFile : public ::testing::Test {
 protected:
  ~PlanFile() override { std::filesystem::remove(path_); }
  std::string write(const plan::Plan& plan) {
    write_file_atomic(path_, plan::to_json(plan));
    return concat("parallel.plan=", path_.string());
  }
  std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / concat("parallel_recipe_test_", ::getpid(), ".json");
};

TEST_F(PlanFile, IsUsedInsteadOfTheKeys) {
  const std::vector<std::string> keys = {"parallel.tensor=2", "shard.level=zero2", "shard.ranks=2",
                                         "shard.prefetch=3"};
  const plan::Plan plan = make_plan(make_recipe(keys), 8);
  const std::string set = write(plan);
  EXPECT_EQ(make_plan(make_recipe({set}), 8), plan);
  EXPECT_EQ(make_plan(make_recipe({set, "shard.level=replicate", "shard.recompute=true"}), 8), plan);
  EXPECT_EQ(axes_text({set}, 8, 6), "rank 6/8 dp1 shard1 tensor0");
  const std::string whole = write(make_plan(make_recipe({"shard.ranks=2"}), 8));
  EXPECT_EQ(axes_text({whole}, 8, 3), "rank 3/8 dp1 shard1");
}

TEST_F(PlanFile, MayNotContradictRulesOrTheTensorDegree) {
  const plan::Plan plan = make_plan(make_recipe({"parallel.tensor=2"}), 8);
  const std::string set = write(plan);
  EXPECT_EQ(make_plan(make_recipe({set, "parallel.tensor=2"}), 8), plan) << "they agree";
  EXPECT_EQ(error_text([&] {
              make_plan(make_recipe({set, "parallel.tensor=4"}), 8);
            }),
            concat("[train.plan] parallel.plan and parallel.tensor are both given, but \"tensor\" of unit "
                   "\"blocks.0\" is 2 in the file (",
                   path_.string(),
                   ") and 4 by the keys shard.* and parallel.*: expected only one of them; remove "
                   "parallel.tensor, or parallel.plan"));
  EXPECT_EQ(
      error_text([&] {
        make_plan(make_recipe({set, "shard.units=head=zero1"}), 8);
      }),
      concat("[train.plan] parallel.plan and shard.units are both given, but \"tensor\" of unit "
             "\"blocks.0\" is 2 in the file (",
             path_.string(),
             ") and 1 by the keys shard.* and parallel.*: expected only one of them; remove shard.units, "
             "or parallel.plan"));
  const std::string recomputes =
      write(make_plan(make_recipe({"parallel.tensor=2", "shard.recompute=true"}), 8));
  const std::string text = error_text([&] { make_plan(make_recipe({recomputes, "parallel.tensor=2"}), 8); });
  EXPECT_NE(text.find("but \"recompute\" of unit \"blocks.0\" is all in the file ("), std::string::npos)
      << text;
  EXPECT_EQ(error_text([&] { make_plan(make_recipe({set}), 4); }),
            concat("[plan.read_plan] \"world\" is 8 (", path_.string(),
                   "): expected 4, the number of ranks of this run; start 8 ranks with --procs, srun or "
                   "torchrun; or search a plan for 4"));
}

TEST_F(PlanFile, WithStagesIsRefusedBesideATeacher) {
  const auto refusal = [](const char* hint) {
    return concat(
        "[train.plan] distill.teacher is given, and the model is cut into 2 stages: expected no teacher with "
        "a pipeline; ",
        hint, ": zero3 and tensor parallelism work with a teacher");
  };
  const std::string teacher = "distill.teacher=somewhere", stages = "parallel.pipeline=2";
  EXPECT_EQ(error_text([&] {
              make_plan(make_recipe({stages, teacher}), 4);
            }),
            refusal("set parallel.pipeline = 1"));
  const std::string set = write(make_plan(make_recipe({stages}), 4));
  EXPECT_EQ(error_text([&] {
              make_plan(make_recipe({set, teacher}), 4);
            }),
            refusal("set parallel.plan to a plan with 1 stage"));
  EXPECT_EQ(make_plan(make_recipe({teacher}), 4).stages, 1);
}

// Before a dry run has said that all is well.
TEST_F(PlanFile, IsRefusedWhereTrainingDoesNotSupportIt) {
  plan::Plan plan = make_plan(make_recipe(), 2);
  plan.units[0].recompute = plan::Recompute::kAll;
  const std::string set = write(plan);
  EXPECT_EQ(
      error_text([&] { make_plan(make_recipe({set}), 2); }),
      concat("[train.plan] training does not support \"recompute\" \"all\" of unit \"stem\" of the plan yet "
             "(",
             path_.string(), "): expected \"none\""));
}

TEST_F(PlanFile, ThatIsMissingIsNamedWithAWayOut) {
  EXPECT_EQ(
      error_text([] { make_plan(make_recipe({"parallel.plan=/nowhere/p.json"}), 2); }),
      "[file.open] cannot open /nowhere/p.json: No such file or directory (parallel.plan); set it to a plan "
      "file: a run that used one has the same plan in its plan.json");
}

using Lines = std::vector<std::string>;

TEST_F(PlanFile, KeysBesideItAreNamed) {
  const std::string set = write(make_plan(make_recipe({"parallel.tensor=2", "shard.level=zero2"}), 8));
  const auto warnings = [&](Lines sets) {
    sets.push_back(set);
    const recipe::Recipe recipe = make_recipe(sets);
    return layout_warnings(recipe, make_plan(recipe, 8));
  };
  const std::string why = concat(" no effect: parallel.plan decides the layout (", path_.string(), ")");
  EXPECT_EQ(warnings({}), Lines{});
  EXPECT_EQ(warnings({"parallel.tensor=2", "shard.level=zero2"}), Lines{}) << "they agree";
  EXPECT_EQ(warnings({"shard.level=zero1"}), Lines{"shard.level has" + why});
  EXPECT_EQ(warnings({"shard.ranks=3", "parallel.keep_gathered=false"}),
            Lines{"shard.ranks, parallel.keep_gathered have" + why});
  EXPECT_EQ(warnings({"parallel.schedule=gpipe"}), Lines{"parallel.schedule has" + why});
  EXPECT_EQ(warnings({"parallel.pieces=4"}), Lines{}) << "the file says nothing of pieces";
  EXPECT_EQ(warnings({"shard.level=zero1", "distill.teacher=somewhere"}), Lines{}) << "the teacher's";
}

// A key that agrees with the file is accepted without a warning.
TEST_F(PlanFile, MayNotContradictKeysOfThePipeline) {
  // The model has 3 blocks: a stage of stem and a block, one of two blocks, the head alone.
  const plan::Plan plan =
      make_plan(make_recipe({"parallel.pipeline=3", "parallel.schedule=gpipe", "parallel.micro_batches=4",
                             "parallel.stages=[1, 2, 0]", "shard.level=zero2"}),
                6);
  const std::string set = write(plan);
  for (const char* key : {"parallel.pipeline=3", "parallel.schedule=gpipe", "parallel.micro_batches=4",
                          "parallel.stages=[1, 2, 0]", "parallel.virtual_stages=1"}) {
    const recipe::Recipe recipe = make_recipe({set, key});
    EXPECT_EQ(make_plan(recipe, 6), plan) << key;
    EXPECT_EQ(layout_warnings(recipe, plan), Lines{}) << key;
  }
  const auto error = [&](const char* key) {
    return error_text([&] { make_plan(make_recipe({set, key}), 6); });
  };
  const auto expected = [&](const char* key, const char* value, const char* of_file) {
    return concat("[train.plan] ", key, " is ", value, ", and parallel.plan has ", of_file, " (",
                  path_.string(), "): expected only one of them; remove ", key, ", or parallel.plan");
  };
  EXPECT_EQ(error("parallel.pipeline=2"), expected("parallel.pipeline", "2", "3 stages"));
  EXPECT_EQ(error("parallel.stages=[1, 1, 1]"), expected("parallel.stages", "[1, 1, 1]", "[1, 2, 0]"));
  EXPECT_EQ(error("parallel.stages=[3]"), expected("parallel.stages", "[3]", "[1, 2, 0]"));
  EXPECT_EQ(error("parallel.schedule=interleaved"),
            expected("parallel.schedule", "\"interleaved\"", "\"gpipe\""));
  EXPECT_EQ(error("parallel.micro_batches=8"), expected("parallel.micro_batches", "8", "4 micro-batches"));
  EXPECT_EQ(error("parallel.virtual_stages=2"), expected("parallel.virtual_stages", "2", "1 virtual stage"));
  EXPECT_EQ(error("parallel.ahead=1"), expected("parallel.ahead", "1", "\"ahead\" 0"));
  const std::string whole = write(make_plan(make_recipe({"shard.level=zero2"}), 6));
  const recipe::Recipe recipe = make_recipe({whole, "parallel.schedule=gpipe"});
  EXPECT_EQ(layout_warnings(recipe, make_plan(recipe, 6)),
            Lines{concat("parallel.schedule has no effect: parallel.plan decides the layout (",
                         path_.string(), ")")})
      << "the file has no pipeline";
  EXPECT_EQ(error_text([&] {
              make_plan(make_recipe({whole, "parallel.pipeline=2"}), 6);
            }),
            expected("parallel.pipeline", "2", "1 stage"));
}

TEST_F(PlanFile, OfAnInterleavedPipelineMayHaveItsKeysBesideIt) {
  const Lines keys = {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
                      "parallel.micro_batches=4"};
  const plan::Plan plan = make_plan(make_recipe(keys), 4);
  Lines agreeing = keys;
  agreeing.push_back(write(plan));
  EXPECT_EQ(make_plan(make_recipe(agreeing), 4), plan);
}

TEST(ParallelRecipe, KeysOfTensorParallelismWithoutItAreNamed) {
  const auto warnings = [](const Lines& sets) {
    const recipe::Recipe recipe = make_recipe(sets);
    return layout_warnings(recipe, make_plan(recipe, 4));
  };
  const std::string why = " no effect: parallel.tensor is 1, and no rule of shard.units has tensorN";
  EXPECT_EQ(warnings({}), Lines{});
  EXPECT_EQ(warnings({"parallel.pieces=4"}), Lines{"parallel.pieces has" + why});
  EXPECT_EQ(warnings({"parallel.tensor_adjacent=false", "parallel.keep_gathered=false"}),
            Lines{"parallel.tensor_adjacent, parallel.keep_gathered have" + why});
  EXPECT_EQ(warnings({"parallel.pieces=4", "shard.units=blocks.0=tensor2"}), Lines{});
}

// Where its keys make groups that the student's plan does not have.
TEST(ParallelRecipe, ATeachersGroupsAreAmongThoseOfTheMesh) {
  const recipe::Recipe plain =
      make_recipe({"parallel.tensor=4", "shard.units=stem=replicate, head=replicate"});
  plan::Plan plan = make_plan(plain, 4);
  const auto has_pairs = [&](const recipe::Recipe& recipe) {
    return std::ranges::count(mesh_spans(recipe, plan), plan::Span{1, 2}) > 0;
  };
  EXPECT_FALSE(has_pairs(make_recipe({"shard.ranks=2"})));
  EXPECT_TRUE(has_pairs(make_recipe({"shard.ranks=2", "distill.teacher=somewhere"})));
}

// What an evaluation makes of the recipe of a training.
TEST(ParallelRecipe, AnEvaluationKeepsTensorParallelismWhereItFits) {
  const auto plan_of = [](std::vector<std::string> trained, int64_t world, std::vector<std::string> sets) {
    recipe::Recipe recipe = make_recipe(trained);
    for (const std::string& set : sets) trained.push_back(set);
    recipe = make_recipe(trained);
    use_any_ranks(recipe, world, sets);
    return make_plan(recipe, world);
  };
  const auto degree = [&](const plan::Plan& plan, size_t unit) { return plan.units[unit].layout.tensor; };
  const std::vector<std::string> uniform = {"parallel.tensor=2", "shard.ranks=2"};
  EXPECT_EQ(degree(plan_of(uniform, 1, {}), 1), 1);
  EXPECT_EQ(degree(plan_of(uniform, 3, {}), 1), 1);
  EXPECT_EQ(degree(plan_of(uniform, 4, {}), 1), 2);
  EXPECT_EQ(plan_of(uniform, 4, {}).units[1].shard, 0);
  const std::vector<std::string> rules = {
      "shard.units=blocks.0=tensor4+replicate, blocks.1=keep_sums+tensor2+ranks2"};
  const plan::Plan alone = plan_of(rules, 1, {});
  EXPECT_EQ(alone.units[1], (plan::UnitPlan{.name = "blocks.0", .level = plan::Level::kReplicate}));
  EXPECT_EQ(alone.units[2], (plan::UnitPlan{.name = "blocks.1", .recompute = plan::Recompute::kAll}));
  EXPECT_EQ(degree(plan_of(rules, 4, {}), 1), 4);
  EXPECT_EQ(degree(plan_of(rules, 2, {}), 2), 1) << "one unit does not fit: all are whole";
  EXPECT_EQ(degree(plan_of(uniform, 4, {"parallel.tensor=4"}), 1), 4);
  EXPECT_EQ(error_text([&] { plan_of(uniform, 4, {"parallel.tensor=3"}); }),
            "[plan.set_tensor] parallel.tensor is 3: expected a divisor of the 4 ranks that train");
  const std::vector<std::string> stages = {"parallel.pipeline=2"};
  EXPECT_EQ(plan_of(stages, 4, {}).stages, 1);
  EXPECT_EQ(plan_of(stages, 4, {"parallel.schedule=gpipe"}).stages, 2) << "a key of stages asks for them";
  EXPECT_EQ(plan_of({"distill.teacher=/gone"}, 4, stages).stages, 2) << "the teacher has taught";
  recipe::Recipe recipe = make_recipe({"parallel.plan=/gone/plan.json"});
  use_any_ranks(recipe, 2, {});
  EXPECT_EQ(recipe.parallel.plan, "");
}

TEST(ParallelRecipe, SavingsCountGatheredInputs) {
  const auto savings = [](const std::vector<std::string>& sets) {
    const recipe::Recipe recipe = make_recipe(sets);
    launch::Ranks ranks;
    ranks.world = 4;
    return savings_hint(memory_savings(recipe, make_plan(recipe, 4), 12, ranks));
  };
  EXPECT_NE(savings({"parallel.tensor=2"}).find("parallel.keep_gathered = false would save "),
            std::string::npos);
  EXPECT_EQ(savings({}).find("parallel"), std::string::npos);
}

TEST(ParallelRecipe, TheSmallestSavingThatIsEnoughIsNamed) {
  constexpr double kGiB = 1024. * 1024 * 1024;
  const MemorySavings savings = {{"a", 4 * kGiB}, {"b", 2 * kGiB}, {"c", 3 * kGiB}};
  const std::string all = "per rank: a would save 4.00 GiB; b would save 2.00 GiB; c would save 3.00 GiB";
  EXPECT_EQ(savings_hint(savings, "; or else"), all + "; or else");
  EXPECT_EQ(savings_hint(savings, "; or else", 2.5 * kGiB),
            all + "; the smallest of these changes that is enough: c; or else");
  EXPECT_EQ(savings_hint(savings, "; or else", 5 * kGiB),
            all + "; none of these changes is enough alone (5.00 GiB a rank); or else");
  EXPECT_EQ(savings_hint({}, "; or else", kGiB), "or else");
}

TEST(ParallelRecipe, TheLargestPartOfTheFullestStageIsNamed) {
  const recipe::Recipe recipe = make_recipe({"parallel.pipeline=2", "parallel.micro_batches=8"});
  const plan::Plan plan = make_plan(recipe, 2);
  const std::string text = largest_part(recipe, plan, 64);
  EXPECT_TRUE(text.starts_with("; most of it is activations, ") && text.ends_with(" a rank of stage 0"))
      << text;
}

}  // namespace
}  // namespace tessera::train
