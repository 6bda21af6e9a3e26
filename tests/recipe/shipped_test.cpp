// SPDX-License-Identifier: Apache-2.0
// The recipes in recipes/ can be read and say what their comments promise.
#include "tests/recipe/shipped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tessera/base/file.h"
#include "tessera/recipe/default_source.h"
#include "tessera/recipe/option.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

/// With ImageNet-1k.
StepCounts steps_of(const Recipe& recipe) { return count_steps(recipe, 1281167, recipe.train.batch); }

TEST(Shipped, AllCanBeReadAndTrained) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(shipped_recipes())) {
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
  EXPECT_EQ(count, 28);
}

// A recipe that goes on from weights says which it wants instead of starting from none.
TEST(Shipped, WeightsAndTeachersMustBeGiven) {
  for (const char* name : {"deit_b16_384", "deit3_b16_224", "augreg_21k_ft_b16_384", "mae_finetune_b16",
                           "rosetta_b16_384", "clothing160_finetune"}) {
    EXPECT_EQ(shipped(name).train.init_from, "/somewhere/run") << name;
    unsetenv("WEIGHTS");
    const std::string message =
        error_text([&] { read_recipe(shipped_recipes() / (std::string(name) + ".toml"), {}); });
    EXPECT_NE(message.find("WEIGHTS"), std::string::npos) << message;
  }
  EXPECT_EQ(shipped("deit_b16_distilled").distill.teacher, "/somewhere/teacher");
  EXPECT_EQ(shipped("deit_b16_distilled").distill.kind, "hard");
}

/// What is published of each: parameters, steps on ImageNet-1k, learning rate that the warmup rises to, and
/// that at the end.
struct PublishedRun {
  const char* name;
  int64_t parameters, steps;
  double rate, last_rate;
};

TEST(Shipped, SizesStepsAndRatesArePublished) {
  const std::vector<PublishedRun> all = {
      {"deit_b16", 86567656, 1251 * 300, 1e-3, 1e-5},
      {"deit_b16_distilled", 87338192, 1251 * 300, 1e-3, 1e-5},
      {"deit_b16_384", 86859496, 2502 * 30, 5e-6, 5e-6},
      {"deit3_b16_192", 86527720 + 2 * 12 * 768, 625 * 800, 3e-3, 1e-5},
      {"deit3_b16_224", 86567656 + 2 * 12 * 768, 2502 * 20, 1e-5, 1e-5},
      {"bv_s16_90ep", 22050664 - 384 - 197 * 384 + 384 * 385, 112603, 1e-3, 0},
      {"bv_s16_90ep_torch", 22050664 - 384 - 197 * 384 + 384 * 385, 112603, 1e-3, 0},
      {"augreg_b16_i1k", 87158248, 312 * 300, 1e-3, 0},
      {"augreg_21k_ft_b16_384", 86859496, 20000, 0.01, 0},
      {"mae_finetune_b16", 86567656, 1251 * 100, 2e-3, 1e-6},
      {"tv_b16", 86567656, 312 * 300, 3e-3, 0},
      {"rosetta_b16", 87158248, 95000, 3e-3, 1e-5},
      {"rosetta_b16_384", 86859496, 20000, 3e-3, 1e-5},
      {"resmlp_24", 30020680, 1251 * 400, 5e-3, 1e-5},
      {"resmlp_24_bits", 30020680, 625 * 510, 8.8e-4, 1e-5},
      {"vit_large", 304326632, 160145 * 10, 3e-5, 3e-5},
      {"vit_huge", 632199400, 160145 * 10, 3e-5, 3e-5},
  };
  for (const PublishedRun& one : all) {
    SCOPED_TRACE(one.name);
    const Recipe recipe = shipped(one.name);
    EXPECT_EQ(arch::parameter_count(recipe.model), one.parameters);
    const StepCounts counts = steps_of(recipe);
    EXPECT_EQ(counts.total, one.steps);
    EXPECT_NEAR(recipe.optimizer.lr * counts.lr_factor, one.rate, 1e-12);
    const double begin = learning_rate(recipe, counts, counts.warmup);
    if (recipe.schedule.warmup_inside) {  // timm's cosine has fallen a little meanwhile
      EXPECT_LE(begin, one.rate);
      EXPECT_GT(begin, 0.99 * one.rate);
    } else {
      EXPECT_NEAR(begin, one.rate, 1e-12);
    }
    EXPECT_NEAR(learning_rate(recipe, counts, counts.total), one.last_rate, 1e-9);
  }
}

/// Of one recipe, the values of these keys with blanks between.
std::string values_of(const Recipe& recipe, const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) {
    const auto found = std::ranges::find_if(
        options(), [&](const Option& option) { return option.key == key && option.applies_to(recipe); });
    std::string value = found == options().end() ? "-" : to_text(found->get(recipe));
    std::erase(value, '"');
    text += concat(text.empty() ? "" : " ", value.empty() ? "none" : value);
  }
  return text;
}

struct Kept {
  const char* name;
  const char* values;
};

TEST(Shipped, InitialValuesAreOfTheOriginalProgram) {
  for (const char* name :
       {"bv_s16_90ep", "bv_s16_90ep_torch", "augreg_b16_i1k", "rosetta_b16", "deit_b16", "tv_b16"}) {
    const bool big_vision = !std::string(name).starts_with("deit") && !std::string(name).starts_with("tv");
    EXPECT_EQ(values_of(shipped(name), {"model.init"}), big_vision ? "big_vision" : "timm") << name;
  }
}

// A change of any of these is another recipe than the published one.
TEST(Shipped, WhatTheUpdateIsMadeOfIsPublished) {
  const std::vector<std::string> keys = {"optimizer.name",     "optimizer.beta2",    "optimizer.weight_decay",
                                         "optimizer.no_decay", "optimizer.momentum", "optimizer.layer_decay",
                                         "train.clip",         "ema.decay",          "ema.every"};
  const std::vector<Kept> all = {
      {"deit_b16", "adamw 0.999 0.05 auto 0.9 1.0 0.0 0.99996 1"},
      {"deit_b16_distilled", "adamw 0.999 0.05 auto 0.9 1.0 0.0 0.99996 1"},
      {"deit_b16_384", "adamw 0.999 1e-08 auto 0.9 1.0 0.0 0.99996 1"},
      {"deit3_b16_192", "lamb 0.999 0.05 auto 0.9 1.0 1.0 0.99996 1"},
      {"deit3_b16_224", "adamw 0.999 0.1 auto 0.9 1.0 0.0 0.99996 1"},
      {"bv_s16_90ep", "adamw 0.999 0.1 auto 0.9 1.0 1.0 0.0 1"},
      {"bv_s16_90ep_torch", "adamw 0.999 0.1 auto 0.9 1.0 1.0 0.0 1"},
      {"augreg_b16_i1k", "adamw 0.999 0.1 auto 0.9 1.0 1.0 0.0 1"},
      {"augreg_21k_ft_b16_384", "sgd 0.999 0.0 auto 0.9 1.0 1.0 0.0 1"},
      {"mae_finetune_b16", "adamw 0.999 0.05 auto 0.9 0.65 0.0 0.0 1"},
      {"tv_b16", "adamw 0.999 0.3 none 0.9 1.0 1.0 0.99126 32"},
      {"rosetta_b16", "adamw 0.999 0.3 none 0.9 1.0 1.0 0.0 1"},
      {"rosetta_b16_384", "sgd 0.999 0.0 auto 0.9 1.0 1.0 0.0 1"},
      {"resmlp_24", "lamb 0.999 0.2 auto 0.9 1.0 1.0 0.99996 1"},
      {"resmlp_24_bits", "adamw 0.999 0.08 auto 0.9 1.0 1.0 0.99993 1"},
      {"vit_large", "adam 0.999 0.01 none 0.9 1.0 0.0 0.0 1"},
      {"vit_huge", "adam 0.999 0.01 none 0.9 1.0 0.0 0.0 1"},
      {"vit_10b", "adamw 0.999 0.1 none 0.9 1.0 1.0 0.0 1"},
      {"vit_60b", "adamw 0.999 0.1 none 0.9 1.0 1.0 0.0 1"},
      {"resnet50_imagenet", "sgd 0.999 1e-04 none 0.9 1.0 0.0 0.0 1"},
  };
  for (const Kept& one : all) EXPECT_EQ(values_of(shipped(one.name), keys), one.values) << one.name;
}

TEST(Shipped, LossAndWhatKeepsFromOverfittingArePublished) {
  const std::vector<std::string> keys = {
      "loss.name",       "loss.threshold",     "train.label_smoothing", "train.mixup",
      "train.cutmix",    "model.drop_path",    "model.layer_scale",     "model.dropout",
      "data.repeats",    "data.auto_augment",  "data.erasing",          "data.crop",
      "data.crop_scale", "data.interpolation", "data.eval_crop",        "data.eval_crop_ratio"};
  const std::vector<Kept> all = {
      {"deit_b16",
       "ce -1.0 0.1 0.8 1.0 0.1 0.0 0.0 3 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"deit_b16_distilled",
       "ce -1.0 0.1 0.8 1.0 0.1 0.0 0.0 3 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"deit_b16_384",
       "ce -1.0 0.1 0.8 1.0 0.1 0.0 0.0 3 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"deit3_b16_192",
       "bce 0.0 0.0 0.8 1.0 0.2 1e-04 0.0 3 3a 0.0 random_resized [0.08, 1.0] bicubic center 1.0"},
      {"deit3_b16_224",
       "ce -1.0 0.1 0.8 1.0 0.2 1e-04 0.0 1 rand-m9-mstd0.5-inc1 0.0 random_resized [0.08, 1.0] bicubic "
       "center 1.0"},
      {"bv_s16_90ep",
       "ce -1.0 0.0 0.2 0.0 0.0 0.0 0.0 1 bv-randaug:2,10 0.0 inception [0.05, 1.0] bilinear center 0.875"},
      {"bv_s16_90ep_torch",
       "ce -1.0 0.0 0.2 0.0 0.0 0.0 0.0 1 tv-randaug:2,10 0.0 random_resized [0.05, 1.0] bilinear center "
       "0.875"},
      {"augreg_b16_i1k",
       "sigmoid -1.0 0.0 0.5 0.0 0.0 0.0 0.0 1 bv-randaug:2,15 0.0 inception [0.05, 1.0] bilinear center "
       "0.875"},
      {"augreg_21k_ft_b16_384",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 none 0.0 squash_random [0.08, 1.0] bilinear squash 0.875"},
      {"mae_finetune_b16",
       "ce -1.0 0.1 0.8 1.0 0.1 0.0 0.0 1 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"tv_b16",
       "ce -1.0 0.11 0.2 1.0 0.0 0.0 0.0 3 tv-randaug:2,9 0.0 random_resized [0.08, 1.0] bilinear center "
       "0.875"},
      {"rosetta_b16",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.1 1 original 0.0 random_resized [0.08, 1.0] bilinear squash 0.875"},
      {"rosetta_b16_384",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 original 0.0 random_resized [0.08, 1.0] bilinear squash 0.875"},
      {"resmlp_24",
       "ce -1.0 0.1 0.8 1.0 0.1 1e-05 - 3 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.9"},
      {"resmlp_24_bits",
       "ce -1.0 0.1 0.5 1.0 0.1 1e-05 - 1 rand-m6-n4-mstd1.0-inc1 0.0 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"vit_large",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"vit_huge",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 rand-m9-mstd0.5-inc1 0.25 random_resized [0.08, 1.0] bicubic "
       "center 0.875"},
      {"vit_10b",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 none 0.0 random_resized [0.08, 1.0] bicubic center 0.875"},
      {"vit_60b",
       "ce -1.0 0.0 0.0 0.0 0.0 0.0 0.0 1 none 0.0 random_resized [0.08, 1.0] bicubic center 0.875"},
      {"resnet50_imagenet",
       "ce -1.0 0.0 0.0 0.0 - - - 1 none 0.0 random_resized [0.08, 1.0] bilinear center 0.875"},
  };
  for (const Kept& one : all) EXPECT_EQ(values_of(shipped(one.name), keys), one.values) << one.name;
}

// Whose programs take timm's schedules; the others' cosine begins after the warmup (MAE's lr_sched.py,
// torchvision's SequentialLR, big_vision's and optax' schedules, vit_10b_fsdp_example's utils.py).
TEST(Shipped, TimmsCosineCountsTheWarmup) {
  const std::set<std::string> timms = {"deit_b16",      "deit_b16_distilled", "deit_b16_384",
                                       "deit3_b16_192", "deit3_b16_224",      "resmlp_24",
                                       "resmlp_24_bits"};
  for (const auto& file : std::filesystem::directory_iterator(shipped_recipes())) {
    if (file.path().extension() != ".toml") continue;
    const std::string name = file.path().stem();
    EXPECT_EQ(shipped(name).schedule.warmup_inside, timms.contains(name)) << name;
  }
}

// Whoever starts one without its data is told which variable names them.
TEST(Shipped, DataThatAreNotThereAreNamedWithTheirVariable) {
  for (const auto& [name, variable] :
       {std::pair("mnist", "MNIST"), std::pair("clothing160", "CLOTHING160")}) {
    const std::filesystem::path file = shipped_recipes() / concat(name, ".toml");
    const std::string text = read_file(file);
    const std::string line = std::to_string(
        1 +
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("source =")), '\n'));
    unsetenv(variable);
    const std::string here = (shipped_recipes().parent_path() / "data" / name).string();
    if (std::filesystem::exists(here)) continue;
    EXPECT_EQ(error_text([&] { check_default_source(read_recipe(file, {}), file); }),
              concat("[recipe.data] data.source is ", here, ", which does not exist (", file.string(), ":",
                     line, "); set the environment variable ", variable, ", for which this is the default: ",
                     variable, "=/data/", name, " tessera train ", file.string()));
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {"data.source=folder:/nowhere"}), file));
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {"data.source=fake:10"}), file));
    setenv(variable, "/nowhere/else", 1);  // opening it will say so
    EXPECT_NO_THROW(check_default_source(read_recipe(file, {}), file));
    setenv(variable, "", 1);
    EXPECT_NE(error_text([&] { check_default_source(read_recipe(file, {}), file); }), "no error");
    unsetenv(variable);
  }
  const std::filesystem::path made_up = shipped_recipes() / "vit_10b.toml";
  EXPECT_NO_THROW(check_default_source(read_recipe(made_up, {}), made_up));
}

TEST(Shipped, Quickstart) {
  unsetenv("TESSERA_FASHION_MNIST");
  const Recipe recipe = read_recipe(shipped_recipes() / "quickstart.toml", {});
  EXPECT_EQ(recipe.data.source, "idx:/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(recipe.model.as<arch::VitConfig>().tokens(), 16);
  EXPECT_EQ(recipe.shard.level, plan::Level::kZero3);
}

TEST(Shipped, TenBillion) {
  unsetenv("IMAGENET");
  const Recipe recipe = read_recipe(shipped_recipes() / "vit_10b.toml", {});
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

// head(mean(norm(x))), AdamW over all parameters alike, and torchvision's transforms with bicubic filters.
TEST(Shipped, TheGiantsAreTheOriginalPrograms) {
  for (const char* name : {"vit_10b", "vit_60b"}) {
    const Recipe recipe = shipped(name);
    const auto& model = recipe.model.as<arch::VitConfig>();
    EXPECT_EQ(model.pool, arch::Pool::kAverage) << name;
    EXPECT_TRUE(model.norm_before_pool) << name;
    EXPECT_FALSE(model.class_token) << name;
    EXPECT_EQ(recipe.optimizer.no_decay, "none") << name;
    EXPECT_EQ(recipe.optimizer.weight_decay, 0.1) << name;
    EXPECT_EQ(
        values_of(recipe, {"data.crop", "data.interpolation", "data.eval_crop", "data.eval_crop_ratio"}),
        "random_resized bicubic center 0.875")
        << name;
  }
}

TEST(Shipped, ResNet50) {
  unsetenv("IMAGENET");
  const Recipe recipe = read_recipe(shipped_recipes() / "resnet50_imagenet.toml", {});
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
