// The recipes in recipes/ can be read and say what their comments promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tessera/base/file.h"
#include "tessera/recipe/default_source.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TESSERA_SOURCE_DIR) / "recipes";

/// As `tessera train recipes/NAME.toml` of somebody who set what its comment asks for, and no data.
Recipe shipped(const std::string& name) {
  unsetenv("IMAGENET");
  setenv("WEIGHTS", "/somewhere/run", 1);
  setenv("TEACHER", "/somewhere/teacher", 1);
  return read_recipe(kFolder / (name + ".toml"), {});
}

/// With ImageNet-1k.
StepCounts steps_of(const Recipe& recipe) { return count_steps(recipe, 1281167, recipe.train.batch); }

TEST(Shipped, AllCanBeReadAndTrained) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    if (file.path().extension() != ".toml") continue;
    ++count;
    SCOPED_TRACE(file.path());
    Recipe recipe;
    ASSERT_NO_THROW(recipe = shipped(file.path().stem()));
    EXPECT_EQ(recipe.name, file.path().stem());
    EXPECT_FALSE(recipe.data.source.empty());
    for (const int64_t world : {1, 2, 4}) EXPECT_NO_THROW(resolve_batch(recipe.train, world));
    const Recipe again = parse_recipe(to_toml(recipe), "saved", "/", {});
    EXPECT_EQ(difference(recipe, again), std::vector<std::string>{});
  }
  EXPECT_EQ(count, 24);
}

// A recipe that goes on from weights says which it wants instead of starting from none.
TEST(Shipped, WeightsAndTeachersMustBeGiven) {
  for (const char* name : {"deit_b16_384", "deit3_b16_224", "augreg_21k_ft_b16_384", "mae_finetune_b16",
                           "rosetta_b16_384", "clothing160_finetune"}) {
    EXPECT_EQ(shipped(name).train.init_from, "/somewhere/run") << name;
    unsetenv("WEIGHTS");
    const std::string message = error_text([&] { read_recipe(kFolder / (std::string(name) + ".toml"), {}); });
    EXPECT_NE(message.find("WEIGHTS"), std::string::npos) << message;
  }
  EXPECT_EQ(shipped("deit_b16_distilled").distill.teacher, "/somewhere/teacher");
  EXPECT_EQ(shipped("deit_b16_distilled").distill.kind, "hard");
}

/// What is published of each: parameters, steps on ImageNet-1k, learning rate that the warmup rises to, and
/// that at the end.
struct Published {
  const char* name;
  int64_t parameters, steps;
  double rate, last_rate;
};

TEST(Shipped, SizesStepsAndRatesArePublished) {
  const std::vector<Published> all = {
      {"deit_b16", 86567656, 1251 * 300, 1e-3, 1e-5},
      {"deit_b16_distilled", 87338192, 1251 * 300, 1e-3, 1e-5},
      {"deit_b16_384", 86859496, 2502 * 30, 5e-6, 5e-6},
      {"deit3_b16_192", 86527720 + 2 * 12 * 768, 625 * 800, 3e-3, 1e-5},
      {"deit3_b16_224", 86567656 + 2 * 12 * 768, 2502 * 20, 1e-5, 1e-5},
      {"bv_s16_90ep", 22050664 - 384 - 197 * 384 + 384 * 385, 112603, 1e-3, 0},
      {"bv_s16_90ep_torch", 22050664 - 384 - 197 * 384 + 384 * 385, 112603, 1e-3, 0},
      {"augreg_b16_i1k", 86567656, 312 * 300, 1e-3, 0},
      {"augreg_21k_ft_b16_384", 86859496, 20000, 0.03, 0},
      {"mae_finetune_b16", 86567656, 1251 * 100, 2e-3, 1e-6},
      {"tv_b16", 86567656, 312 * 300, 3e-3, 0},
      {"rosetta_b16", 87158248, 95000, 3e-3, 1e-5},
      {"rosetta_b16_384", 86859496, 20000, 3e-3, 1e-5},
      {"resmlp_24", 30020680, 1251 * 400, 5e-3, 1e-5},
      {"vit_large", 304326632, 160145, 3e-5, 3e-5},
      {"vit_huge", 632199400, 160145, 3e-5, 3e-5},
  };
  for (const Published& one : all) {
    SCOPED_TRACE(one.name);
    const Recipe recipe = shipped(one.name);
    EXPECT_EQ(arch::parameter_count(recipe.model), one.parameters);
    const StepCounts counts = steps_of(recipe);
    EXPECT_EQ(counts.total, one.steps);
    EXPECT_NEAR(recipe.optimizer.lr * counts.lr_factor, one.rate, 1e-12);
    const double begin = learning_rate(recipe, counts, counts.warmup);
    if (recipe.schedule.warmup_inside) {  // timm's cosine has fallen a little meanwhile
      EXPECT_LT(begin, one.rate);
      EXPECT_GT(begin, 0.999 * one.rate);
    } else {
      EXPECT_NEAR(begin, one.rate, 1e-12);
    }
    EXPECT_NEAR(learning_rate(recipe, counts, counts.total), one.last_rate, 1e-9);
  }
}

// Whose programs take timm's schedules; the others' cosine begins after the warmup (MAE's lr_sched.py,
// torchvision's SequentialLR, big_vision's and optax' schedules, vit_10b_fsdp_example's utils.py).
TEST(Shipped, TimmsCosineCountsTheWarmup) {
  const std::set<std::string> timms = {"deit_b16", "deit_b16_distilled", "deit3_b16_192", "resmlp_24"};
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    if (file.path().extension() != ".toml") continue;
    const std::string name = file.path().stem();
    EXPECT_EQ(shipped(name).schedule.warmup_inside, timms.contains(name)) << name;
  }
}

// Whoever starts one without its data is told which variable names them.
TEST(Shipped, DataThatAreNotThereAreNamedWithTheirVariable) {
  for (const auto& [name, variable] :
       {std::pair("mnist", "MNIST"), std::pair("clothing160", "CLOTHING160")}) {
    const std::filesystem::path file = kFolder / concat(name, ".toml");
    const std::string text = read_file(file);
    const std::string line = std::to_string(
        1 +
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("source =")), '\n'));
    unsetenv(variable);
    const std::string here = (kFolder.parent_path() / "data" / name).string();
    if (std::filesystem::exists(here)) continue;
    EXPECT_EQ(error_text([&] { check_default_source(read_recipe(file, {}), file); }),
              concat("[recipe.data] the data of this recipe: ", here, " does not exist (", file.string(), ":",
                     line, "; it is the default while ", variable, " is not set: ", variable, "=/data/", name,
                     " tessera train ", file.string(), ")"));
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {"data.source=folder:/nowhere"}), file));
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {"data.source=fake:10"}), file));
    setenv(variable, "/nowhere/else", 1);  // opening it will say so
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {}), file));
    setenv(variable, "", 1);
    EXPECT_NE(error_text([&] { check_default_source(read_recipe(file, {}), file); }), "no error");
    unsetenv(variable);
  }
  const std::filesystem::path made_up = kFolder / "vit_10b.toml";
  EXPECT_NO_THROW(check_default_source(read_recipe(made_up, {}), made_up));
}

TEST(Shipped, Quickstart) {
  unsetenv("TESSERA_FASHION_MNIST");
  const Recipe recipe = read_recipe(kFolder / "quickstart.toml", {});
  EXPECT_EQ(recipe.data.source, "idx:/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(recipe.model.as<arch::VitConfig>().tokens(), 16);
  EXPECT_EQ(recipe.shard.level, plan::Level::kZero3);
}

TEST(Shipped, TenBillion) {
  unsetenv("IMAGENET");
  const Recipe recipe = read_recipe(kFolder / "vit_10b.toml", {});
  EXPECT_EQ(arch::parameter_count(recipe.model), 10077917160);
  EXPECT_EQ(recipe.data.source, "fake:1281167");
  const StepCounts counts = count_steps(recipe, 1281167, recipe.train.batch);
  EXPECT_EQ(counts.total, 1251 * 300);
  EXPECT_EQ(counts.warmup, 10000);
  EXPECT_EQ(learning_rate(recipe, counts, 0), 0.0);
  EXPECT_EQ(learning_rate(recipe, counts, 10000), 1e-3);
  EXPECT_EQ(recipe.optimizer.weight_decay, 0.1);
  EXPECT_EQ(recipe.train.clip, 1.0);
  EXPECT_TRUE(recipe.shard.recompute);
}

TEST(Shipped, ResNet50) {
  unsetenv("IMAGENET");
  const Recipe recipe = read_recipe(kFolder / "resnet50_imagenet.toml", {});
  EXPECT_EQ(arch::parameter_count(recipe.model), 25557032);
  const StepCounts counts = count_steps(recipe, 1281167, recipe.train.batch);
  EXPECT_EQ(counts.total, 1251 * 100);
  EXPECT_EQ(counts.warmup, 1251 * 5);
  EXPECT_EQ(learning_rate(recipe, counts, 1251 * 5), 0.4);
  EXPECT_NEAR(learning_rate(recipe, counts, 1251 * 30), 0.04, 1e-12);
  EXPECT_NEAR(learning_rate(recipe, counts, 1251 * 90), 0.0004, 1e-12);
}

}  // namespace
}  // namespace tessera::recipe
