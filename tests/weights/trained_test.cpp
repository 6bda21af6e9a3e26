// SPDX-License-Identifier: Apache-2.0
// Weights with their model and how its images are made, whoever trained them.
#include "tessera/weights/trained.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/recipe/recipe.h"
#include "tessera/weights/export.h"
#include "tests/error_text.h"
#include "tests/weights/foreign.h"

namespace tessera::weights {
namespace {
namespace fs = std::filesystem;
using namespace testing;

class Ours : public ::testing::Test {
 protected:
  /// A run with a checkpoint of step 3, of the given tensors.
  fs::path save(const recipe::Recipe& recipe, std::map<std::string, std::vector<float>> tensors) {
    std::vector<checkpoint::TensorShard> slices;
    for (const auto& spec : arch::parameters(recipe.model)) {
      auto& numbers = tensors.at(spec.name);
      slices.push_back({"param/" + spec.name, "F32", spec.shape, Region::whole(spec.shape),
                        reinterpret_cast<std::byte*>(numbers.data())});
    }
    checkpoint::Progress progress;
    progress.step = 3;
    progress.json = R"({"classes": ["a", "b"], "best_top1": 12.5})";
    progress.recipe_toml = recipe::to_toml(recipe);
    return checkpoint::save({.folder = run / "checkpoints"}, slices, progress, {});
  }
  static recipe::Recipe recipe_of(const arch::ModelConfig& model) {
    recipe::Recipe recipe;
    recipe.model = model;
    recipe.data.source = "fake:8";
    recipe.data.transform.image_size = model.image_size();
    recipe.data.transform.mean = {0.25F, 0.5F, 0.75F};
    recipe.train.batch = 1;
    recipe.train.steps = 1;
    return recipe;
  }
  static std::map<std::string, std::vector<float>> zeros(const arch::ModelConfig& model) {
    std::map<std::string, std::vector<float>> all;
    for (const auto& spec : arch::parameters(model)) all[spec.name].resize(static_cast<size_t>(spec.numel()));
    return all;
  }
  static arch::ResNetConfig small_resnet() {
    arch::ResNetConfig config;
    config.blocks = {1};
    config.base_width = 4;
    config.image_size = 32;
    config.classes = 2;
    return config;
  }

  const TemporaryFolder folder{"tessera-trained"};
  const fs::path run = folder.path() / "run";
};

TEST_F(Ours, ARunKnowsItsModelItsImagesAndItsClasses) {
  const auto numbers = read_all(*open_fixture("timm.safetensors").tensors);
  const fs::path saved = save(recipe_of(small_config()), numbers);
  for (const fs::path& path : {run, saved}) {
    const Trained found = open_trained(path);
    EXPECT_EQ(found.model, arch::ModelConfig(small_config()));
    EXPECT_EQ(found.pixels.image_size, 12);
    EXPECT_EQ(found.pixels.mean, std::vector<float>({0.25F, 0.5F, 0.75F}));
    EXPECT_EQ(found.classes, std::vector<std::string>({"a", "b"}));
    EXPECT_EQ(found.origin, saved.string() + " (step 3)");
    EXPECT_EQ(read_all(*found.tensors), numbers);
  }
}

TEST_F(Ours, AFileMadeOfARunKnowsWhatTheRecipeSays) {
  const auto numbers = read_all(*open_fixture("timm.safetensors").tensors);
  save(recipe_of(small_config()), numbers);
  const fs::path file = folder.path() / "x.safetensors";
  checkpoint::consolidate(*open_file(run).source, file, {});
  const Trained found = open_trained(file);
  EXPECT_EQ(found.model, arch::ModelConfig(small_config()));  // its 2 heads too, which no tensor says
  EXPECT_EQ(found.pixels.mean, std::vector<float>({0.25F, 0.5F, 0.75F}));
  EXPECT_EQ(found.origin, file.string());
  EXPECT_EQ(read_all(*found.tensors), numbers);
}

TEST_F(Ours, AFolderMadeOfARunForHuggingFaceKeepsTheClasses) {
  save(recipe_of(small_config()), read_all(*open_fixture("timm.safetensors").tensors));
  const fs::path hub = folder.path() / "hub";
  Description description = open_fixture("timm.safetensors").description;
  description.classes = {"v", "w", "x", "y", "z"};
  export_model(open_file(run).source, description, Family::kHuggingFace, hub);
  EXPECT_EQ(open_trained(hub).classes, description.classes);
  EXPECT_EQ(open_trained(hub).pixels.mean, std::vector<float>({0.25F, 0.5F, 0.75F}));  // the run's recipe
}

TEST_F(Ours, AModelOfAnotherFamilyComesFromItsCheckpointAlone) {
  save(recipe_of(small_resnet()), zeros(small_resnet()));
  EXPECT_EQ(open_trained(run).model, arch::ModelConfig(small_resnet()));
  const fs::path file = folder.path() / "x.safetensors";
  checkpoint::consolidate(*open_file(run).source, file, {});
  EXPECT_EQ(error_text([&] { open_trained(file); }),
            concat("[weights.open] ", file.string(),
                   " is a file made of a resnet: expected a run or a checkpoint; give the checkpoint"));
}

TEST(Theirs, AFolderOfHuggingFace) {
  const Trained found = open_trained(kFixtures / "hf");
  EXPECT_EQ(found.model.as<arch::VitConfig>().heads, 2);
  EXPECT_EQ(found.pixels.image_size, 12);
  EXPECT_EQ(found.pixels.mean, std::vector<float>(3, 0.5F));
  EXPECT_EQ(found.classes, std::vector<std::string>({"apple", "pear", "plum", "quince", "fig"}));
  EXPECT_TRUE(found.origin.starts_with((kFixtures / "hf" / "model.safetensors").string() + " (hf: "))
      << found.origin;
}

TEST(Theirs, AGreyModelTakesTheFirstOfThreeMeans) {
  const TemporaryFolder folder("tessera-trained");
  arch::VitConfig grey = small_config();
  grey.channels = 1;
  write_zeros(folder.path() / "x.safetensors", timm_shapes(grey));
  const Trained found = open_trained(folder.path() / "x.safetensors", {.from = {}, .ema = true, .heads = 2});
  EXPECT_EQ(found.pixels.channels, 1);
  EXPECT_EQ(found.pixels.mean, std::vector<float>({0.485F}));
  EXPECT_EQ(found.pixels.std, std::vector<float>({0.229F}));
}

TEST(SavedClasses, AreThoseOfTheLoopsText) {
  checkpoint::Progress progress;
  EXPECT_TRUE(saved_classes(progress).empty());
  progress.json = "no object";
  EXPECT_TRUE(saved_classes(progress).empty());
  progress.json = R"({"classes": ["cat", "dog"]})";
  EXPECT_EQ(saved_classes(progress), std::vector<std::string>({"cat", "dog"}));
}

}  // namespace
}  // namespace tessera::weights
