// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tessera/base/file.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

const arch::VitConfig& vit(const Recipe& recipe) { return recipe.model.as<arch::VitConfig>(); }

arch::VitConfig vit_of(Recipe recipe) { return vit(recipe); }

TEST(Read, EmptyIsAllDefaults) {
  const Recipe recipe = read("");
  Recipe defaults;
  defaults.train.steps = 10;
  EXPECT_EQ(difference(defaults, recipe), std::vector<std::string>{});
  EXPECT_EQ(recipe.model, arch::ModelConfig());
}

TEST(Read, EveryKindOfValue) {
  const Recipe recipe = read(R"(
name = "a run"
[model]
channels = 3
pool = "gap"
class_token = false
layer_scale = 1
[data]
crop = "pad"
crop_scale = [0.5, 1]
mean = [0.5, 0.25, 0]
interpolation = "bicubic"
[optimizer]
lr = 3e-4
[shard]
level = "zero1"
[precision]
compute = "bf16"
)");
  EXPECT_EQ(recipe.name, "a run");
  EXPECT_EQ(vit(recipe).pool, arch::Pool::kAverage);
  EXPECT_FALSE(vit(recipe).class_token);
  EXPECT_EQ(vit(recipe).layer_scale, 1.0);  // an integer is a number
  EXPECT_EQ(recipe.data.transform.train_crop, data::TrainCrop::kPad);
  EXPECT_EQ(recipe.data.transform.crop_scale_min, 0.5);
  EXPECT_EQ(recipe.data.transform.crop_scale_max, 1.0);
  EXPECT_EQ(recipe.data.transform.mean, (std::vector<float>{0.5F, 0.25F, 0.0F}));
  EXPECT_TRUE(recipe.data.transform.bicubic);
  EXPECT_EQ(recipe.optimizer.lr, 3e-4);
  EXPECT_EQ(recipe.shard.level, plan::Level::kZero1);
  EXPECT_EQ(recipe.precision.compute, Dtype::kBFloat16);
}

TEST(Read, PresetSetsTheModelAndSingleKeysWin) {
  EXPECT_EQ(read("model.preset = 'S/16'").model, arch::model_config("S/16"));
  arch::VitConfig config = arch::vit_config("So400m");
  config.classes = 10;
  EXPECT_EQ(read("[model]\nclasses = 10\npreset = 'So400m'").model, config);
  EXPECT_EQ(read("model.classes = 10", {"model.preset=So400m"}).model, config);
  EXPECT_EQ(vit_of(read("model.preset = 'S/7'\nmodel.image_size = 28")).tokens(), 17);
}

TEST(Read, MlpFollowsTheWidth) {
  EXPECT_EQ(vit_of(read("model.width = 192")).mlp_width, 768);
  EXPECT_EQ(vit_of(read("model.preset = 'So400m'\nmodel.width = 576")).mlp_width, 2152);
  EXPECT_EQ(vit_of(read("model.width = 192\nmodel.mlp_ratio = 2.5")).mlp_width, 480);
  EXPECT_EQ(vit_of(read("model.width = 384\nmodel.mlp_ratio = 2.67")).mlp_width, 1025);  // of 1025.28
  EXPECT_EQ(vit_of(read("model.width = 192\nmodel.mlp_ratio = 2.67")).mlp_width, 513);   // of 512.64
  EXPECT_EQ(vit_of(read("model.width = 192\nmodel.mlp_width = 100")).mlp_width, 100);
  EXPECT_EQ(vit_of(read("model.mlp_width = 100", {"model.mlp_ratio=2"})).mlp_width, 1536);
}

TEST(Read, TransformFollowsTheModel) {
  const Recipe grey = read("[model]\nchannels = 1\nimage_size = 32");
  EXPECT_EQ(grey.data.transform.image_size, 32);
  EXPECT_EQ(grey.data.transform.channels, 1);
  EXPECT_EQ(grey.data.transform.mean, std::vector<float>{0.449F});
  EXPECT_EQ(grey.data.transform.std, std::vector<float>{0.226F});
  EXPECT_EQ(read("model.channels = 1\ndata.mean = [0.1]").data.transform.mean, std::vector<float>{0.1F});
}

TEST(Sets, WinOverTheFileInOrder) {
  EXPECT_EQ(read("train.batch = 1", {"train.batch=2", "train.batch=3"}).train.batch, 3);
  EXPECT_EQ(read("", {"name=quick"}).name, "quick");
  EXPECT_EQ(read("", {"name=\"two words\""}).name, "two words");
  EXPECT_EQ(read("", {"name=two words"}).name, "two words");
  EXPECT_EQ(read("", {"name=123"}).name, "123");
  EXPECT_EQ(read("", {"name=true"}).name, "true");
  EXPECT_EQ(read("", {"name=a=b # c"}).name, "a=b # c");
  EXPECT_EQ(read("data.source = \"folder:/x\"", {"data.source="}).data.source, "");
  EXPECT_EQ(read("", {"data.flip=false"}).data.transform.flip, false);
  EXPECT_EQ(read("", {"optimizer.lr=1"}).optimizer.lr, 1.0);
  EXPECT_EQ(read("", {"data.crop_scale=[0.1, 0.2]"}).data.transform.crop_scale_max, 0.2);
  EXPECT_EQ(vit_of(read("", {"model.pool=gap"})).pool, arch::Pool::kAverage);
}

TEST(Sets, OneOfAPairReplacesTheOther) {
  const auto parsed = [](const std::string& toml, const std::vector<std::string>& sets) {
    return parse_recipe(toml, "test.toml", "/base", sets);
  };
  EXPECT_EQ(parsed("train.epochs = 3", {"train.steps=5"}).train.epochs, 0);
  EXPECT_EQ(parsed("train.steps = 3", {"train.epochs=1.5"}).train.steps, 0);
  EXPECT_EQ(parsed("train.epochs = 3", {"train.epochs=0", "train.steps=5"}).train.steps, 5);  // 0: not given
  const Recipe warm = read("schedule.warmup_epochs = 1", {"schedule.warmup_steps=7"});
  EXPECT_EQ(warm.schedule.warmup_epochs, 0);
  EXPECT_EQ(warm.schedule.warmup_steps, 7);
}

/// 0 means none, and so replaces the file's other key too; it does not replace one of a different --set.
TEST(Sets, AZeroLengthReplacesTheOther) {
  struct Pair {
    const char* name;
    double ScheduleRecipe::*epochs;
    int64_t ScheduleRecipe::*steps;
  };
  for (const Pair& pair :
       {Pair{"warmup", &ScheduleRecipe::warmup_epochs, &ScheduleRecipe::warmup_steps},
        Pair{"cooldown", &ScheduleRecipe::cooldown_epochs, &ScheduleRecipe::cooldown_steps},
        Pair{"step", &ScheduleRecipe::step_epochs, &ScheduleRecipe::step_steps}}) {
    const std::string epochs = concat("schedule.", pair.name, "_epochs"),
                      steps = concat("schedule.", pair.name, "_steps");
    const auto lengths = [&](const std::string& file, const std::vector<std::string>& sets) {
      const ScheduleRecipe schedule = read(file, sets).schedule;
      return std::pair(schedule.*pair.epochs, schedule.*pair.steps);
    };
    using Lengths = std::pair<double, int64_t>;
    EXPECT_EQ(lengths(steps + " = 3", {epochs + "=0"}), Lengths(0, 0)) << steps;
    EXPECT_EQ(lengths(epochs + " = 2.5", {steps + "=0"}), Lengths(0, 0)) << steps;
    EXPECT_EQ(lengths(steps + " = 3", {steps + "=0"}), Lengths(0, 0)) << steps;
    EXPECT_EQ(lengths(steps + " = 3\n" + epochs + " = 0", {epochs + "=0"}), Lengths(0, 0)) << steps;
    EXPECT_EQ(lengths(steps + " = 3\n" + epochs + " = 0", {}), Lengths(0, 3)) << steps;
    EXPECT_EQ(lengths(steps + " = 3", {epochs + "=0", steps + "=4"}), Lengths(0, 4)) << steps;
    EXPECT_EQ(lengths(steps + " = 3", {steps + "=4", epochs + "=0"}), Lengths(0, 4)) << steps;
    EXPECT_EQ(lengths(epochs + " = 1", {steps + "=0", epochs + "=2"}), Lengths(2, 0)) << steps;
  }
}

TEST(Environment, Expands) {
  setenv("TESSERA_TEST_NAME", "value", 1);
  setenv("TESSERA_TEST_EMPTY", "", 1);
  unsetenv("TESSERA_TEST_UNSET");
  EXPECT_EQ(read("name = 'a ${TESSERA_TEST_NAME} b'").name, "a value b");
  EXPECT_EQ(read("name = '${TESSERA_TEST_NAME:-other}'").name, "value");
  EXPECT_EQ(read("name = '${TESSERA_TEST_UNSET:-other}'").name, "other");
  EXPECT_EQ(read("data.source = '${TESSERA_TEST_UNSET:-}'").data.source, "");
  EXPECT_EQ(read("name = '${TESSERA_TEST_EMPTY:-other}'").name, "other");
  EXPECT_EQ(read("data.source = '${TESSERA_TEST_EMPTY}'").data.source, "");
  EXPECT_EQ(read("name = '$${TESSERA_TEST_NAME}'").name, "${TESSERA_TEST_NAME}");
  EXPECT_EQ(read("name = '$5 and $$5 and $'").name, "$5 and $$5 and $");
  EXPECT_EQ(read("", {"name=${TESSERA_TEST_NAME}"}).name, "value");
  EXPECT_EQ(vit_of(read("model.pool = '${TESSERA_TEST_UNSET:-map}'")).pool, arch::Pool::kAttention);
}

TEST(Environment, PrintedTextReadsBack) {
  for (const char* name : {"${X}", "$${X}", "$$${X}", "${", "$", "$$", "a${b", "quo\\\"te", "\u00e9\u4e2d"}) {
    Recipe recipe;
    recipe.train.steps = 1;
    recipe.name = name;
    EXPECT_EQ(parse_recipe(to_toml(recipe), "t", "/", {}).name, name);
  }
}

TEST(Paths, AreRelativeToTheFileAndSetsToTheWorkingDirectory) {
  const auto source = [](const std::string& spec) {
    return read("data.source = '" + spec + "'").data.source;
  };
  EXPECT_EQ(source("folder:../data"), "folder:/data");
  EXPECT_EQ(source("folder:data/x"), "folder:/base/data/x");
  EXPECT_EQ(source("idx:/data//mnist"), "idx:/data/mnist");
  EXPECT_EQ(source("some/folder"), "/base/some/folder");
  EXPECT_EQ(source("fake:100"), "fake:100");
  EXPECT_EQ(source("fake"), "fake");
  EXPECT_EQ(source("folder:"), "folder:");
  EXPECT_EQ(source(""), "");
  EXPECT_EQ(source("wds:a-{0..1}.tar,/b/c.tar::val=d/../e"), "wds:/base/a-{0..1}.tar,/b/c.tar,val=/base/e");
  EXPECT_EQ(source("tfrecord:tfds/mnist"), "tfrecord:/base/tfds/mnist");
  const auto here = std::filesystem::current_path();
  EXPECT_EQ(read("", {"data.source=folder:x"}).data.source, "folder:" + (here / "x").string());
  EXPECT_EQ(read("run.dir = 'runs/a'").run.dir, "/base/runs/a");
  EXPECT_EQ(read("run.dir = 'runs/a'", {"run.dir=b"}).run.dir, (here / "b").string());
  EXPECT_EQ(read("").run.dir, "");
}

TEST(Paths, OfIndexesAndClassNames) {
  EXPECT_EQ(read("data.index_dir = 'idx'").data.index_dir, "/base/idx");
  EXPECT_EQ(read("data.index_dir = 'a/{split}'").data.index_dir, "/base/a/{split}");
  for (const std::string word : {"beside", "none", ""}) {
    EXPECT_EQ(read("data.index_dir = '" + word + "'").data.index_dir, word);
  }
  EXPECT_EQ(read("data.classes = 'names.txt'").data.classes, "/base/names.txt");
}

TEST(Paths, ReadRecipeUsesTheFilesFolder) {
  const TemporaryFolder folder("tessera-recipe");
  write_file_atomic(folder.path() / "r.toml", "train.steps = 1\ndata.source = 'folder:d'\n");
  EXPECT_EQ(read_recipe(folder.path() / "r.toml", {}).data.source,
            "folder:" + (folder.path() / "d").string());
  EXPECT_NE(error_text([&] { read_recipe(folder.path() / "none.toml", {}); }).find("none.toml"),
            std::string::npos);
}

TEST(Read, AResNetHasItsOwnKeys) {
  const Recipe preset = read("model.preset = 'resnet18'\nmodel.classes = 10");
  arch::ResNetConfig wanted = arch::resnet_config("resnet18");
  wanted.classes = 10;
  EXPECT_EQ(preset.model, arch::ModelConfig(wanted));
  EXPECT_EQ(read("model.family = 'resnet'").model, arch::model_config("resnet50"));
  const Recipe tiny = read(
      "[model]\nfamily = 'resnet'\nblock = 'basic'\nblocks = [1, 2]\nbase_width = 8\nbatch_norm_sync = true\n"
      "zero_init_residual = true\nbatch_norm_momentum = 0.05\nbatch_norm_epsilon = 1e-3\nimage_size = 32");
  const auto& model = tiny.model.as<arch::ResNetConfig>();
  EXPECT_FALSE(model.bottleneck);
  EXPECT_EQ(model.blocks, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(model.base_width, 8);
  EXPECT_TRUE(model.batch_norm_sync && model.zero_init_residual);
  EXPECT_EQ(model.batch_norm_momentum, 0.05);
  EXPECT_EQ(model.batch_norm_epsilon, 1e-3);
  EXPECT_EQ(tiny.data.transform.image_size, 32);
  const std::string toml = to_toml(tiny);
  EXPECT_NE(toml.find("\nfamily = \"resnet\" "), std::string::npos) << toml;
  EXPECT_NE(toml.find("\nblocks = [1, 2] "), std::string::npos) << toml;
  EXPECT_EQ(toml.find("\ndepth"), std::string::npos) << "a key of another family";
  EXPECT_EQ(parse_recipe(toml, "saved", "/", {}).model, tiny.model);
  EXPECT_EQ(difference(read(""), preset)[0], "model.family: \"vit\" -> \"resnet\"");
}

TEST(Read, AResMlpSharesKeysWithAViT) {
  const auto model_of = [](const Recipe& recipe) { return recipe.model.as<arch::ResMlpConfig>(); };
  const Recipe narrow =
      read("[model]\npreset = 'resmlp_12_224'\nwidth = 96\npatch_size = 32\ndrop_path = 0.1");
  EXPECT_EQ(model_of(narrow).mlp_width, 384);
  EXPECT_EQ(model_of(narrow).patch_size, 32);
  EXPECT_EQ(model_of(narrow).depth, 12);
  EXPECT_EQ(model_of(narrow).layer_scale, 1e-4);
  EXPECT_EQ(model_of(narrow).drop_path, 0.1);
  EXPECT_EQ(model_of(read("model.family = 'resmlp'\nmodel.mlp_ratio = 2")).mlp_width, 768);
  EXPECT_EQ(parse_recipe(to_toml(narrow), "saved", "/", {}).model, narrow.model);
}

TEST(Read, BeginningsAreMadeAbsolute) {
  EXPECT_EQ(read("train.init_from = '../run'").train.init_from, "/run");
  EXPECT_EQ(read("").train.init_from, "");
  EXPECT_EQ(read("distill.teacher = 'teacher.npz'").distill.teacher, "/base/teacher.npz");
}

TEST(Print, HelpCoversEveryKeyOnce) {
  const auto help = option_help();
  EXPECT_GT(help.size(), 70U);
  for (const auto& row : help) {
    EXPECT_FALSE(row.key.empty() || row.type.empty()) << row.key;
    EXPECT_EQ(std::count_if(help.begin(), help.end(), [&](const auto& r) { return r.key == row.key; }), 1);
  }
  const auto at =
      std::find_if(help.begin(), help.end(), [](const auto& r) { return r.key == "model.dropout"; });
  EXPECT_EQ(at->type, "number at least 0 and below 1");
  EXPECT_EQ(at->default_value, "0.0");
}

TEST(Print, HelpIsOneShortLineThatStartsWithACapital) {
  constexpr size_t kLongest = 100;  // characters
  for (const auto& row : option_help()) {
    ASSERT_FALSE(row.help.empty()) << row.key;
    EXPECT_LE(row.help.size(), kLongest) << row.key;
    const char first = row.help.front();
    EXPECT_TRUE((first >= 'A' && first <= 'Z') || first == '"') << row.key;
    EXPECT_TRUE(row.help.back() != '.' && row.help.back() != ' ') << row.key;
    EXPECT_EQ(row.help.find("  "), std::string::npos) << row.key;
    EXPECT_TRUE(std::all_of(row.help.begin(), row.help.end(), [](char c) { return c >= ' ' && c <= '~'; }))
        << row.key;
    EXPECT_EQ(std::count(row.help.begin(), row.help.end(), '('),
              std::count(row.help.begin(), row.help.end(), ')'))
        << row.key;
    EXPECT_EQ(std::count(row.help.begin(), row.help.end(), '"') % 2, 0) << row.key;
  }
}

TEST(Print, TomlHoldsHelp) {
  const std::string toml = to_toml(read("data.mean = [0.485]"));
  EXPECT_TRUE(
      toml.starts_with("name = \"run\"                      # Name of the run; the run folder is runs/<name> "
                       "unless run.dir is set\n\n[model]\nfamily = \"vit\"                    # Model "))
      << toml.substr(0, 200);
  EXPECT_NE(
      toml.find("\npool = \"cls\"                      # Classifier input: class token (cls), mean of the "
                "patch tokens (gap) or attention pooling (map) [cls | gap | map]\n"),
      std::string::npos);
  EXPECT_NE(toml.find("\nmean = [0.485] "), std::string::npos);
  EXPECT_EQ(toml.find("\npreset"), std::string::npos);
}

TEST(Print, DifferenceNamesKeysAndValues) {
  const std::vector<std::string> expected = {"model.pool: \"cls\" -> \"map\"", "train.batch: 0 -> 512"};
  EXPECT_EQ(difference(read(""), read("train.batch = 512\nmodel.pool = 'map'")), expected);
}

}  // namespace
}  // namespace tessera::recipe
