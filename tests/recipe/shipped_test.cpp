// The recipes in recipes/ can be read and say what their comments promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tessera/base/file.h"
#include "tessera/recipe/default_source.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(TESSERA_SOURCE_DIR) / "recipes";

TEST(Shipped, AllCanBeReadAndTrained) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    if (file.path().extension() != ".toml") continue;
    ++count;
    SCOPED_TRACE(file.path());
    Recipe recipe;
    ASSERT_NO_THROW(recipe = read_recipe(file.path(), {}));
    EXPECT_EQ(recipe.name, file.path().stem());
    EXPECT_FALSE(recipe.data.source.empty());
    for (const int64_t world : {1, 2, 4}) EXPECT_NO_THROW(resolve_batch(recipe.train, world));
    const Recipe again = parse_recipe(to_toml(recipe), "saved", "/", {});
    EXPECT_EQ(difference(recipe, again), std::vector<std::string>{});
  }
  EXPECT_GE(count, 4);
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
