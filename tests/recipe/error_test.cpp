// SPDX-License-Identifier: Apache-2.0
// The text of every error.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

TEST(Errors, UnknownKeysNameTheNearest) {
  EXPECT_EQ(read_error("[train]\n\nbacth = 3"),
            "[recipe.parse] expected a key of a recipe: found \"train.bacth\" (test.toml:3; did you mean "
            "\"train.batch\"?)");
  EXPECT_EQ(read_error("[trian]\nbatch = 3"),
            "[recipe.parse] expected a key of a recipe: found \"trian.batch\" (test.toml:2; did you mean "
            "\"train.batch\"?)");
  EXPECT_NE(read_error("shrad.prefetch = 3").find("\"shard.prefetch\"?"), std::string::npos);
  EXPECT_EQ(read_error("", {"train.lr=1"}),
            "[recipe.parse] expected a key of a recipe: found \"train.lr\" (--set train.lr=1; did you mean "
            "\"optimizer.lr\"?)");
  EXPECT_EQ(read_error("warmup_steps = 3"),
            "[recipe.parse] expected a key of a recipe: found \"warmup_steps\" (test.toml:1; did you mean "
            "\"schedule.warmup_steps\"?)");
  EXPECT_EQ(read_error("zzzzzz = 3"),
            "[recipe.parse] expected a key of a recipe: found \"zzzzzz\" (test.toml:1; `tessera options` "
            "lists every "
            "key)");
  EXPECT_EQ(read_error("trai = 3"),
            "[recipe.parse] expected a key of a recipe: found \"trai\" (test.toml:1; `tessera options` lists "
            "every key)");
  EXPECT_NE(read_error("[model.width]\nx = 1").find("model.width must be an integer: found a table"),
            std::string::npos);
}

TEST(Errors, ATableWhereAKeyBelongs) {
  EXPECT_EQ(
      read_error("", {"optimizer=sgd"}),
      "[recipe.parse] expected a key of a recipe: found \"optimizer\", which is a table (--set "
      "optimizer=sgd; its keys are optimizer.name, optimizer.lr, optimizer.lr_scale, ...: `tessera options "
      "optimizer` lists all)");
  for (const char* set : {"train=3", "train={batch=3}"}) {
    EXPECT_EQ(
        read_error("", {set}),
        "[recipe.parse] expected a key of a recipe: found \"train\", which is a table (--set " +
            std::string(set) +
            "; its keys are train.batch, train.batch_per_rank, train.accumulation, ...: `tessera options "
            "train` lists all)");
  }
  EXPECT_EQ(read_error("model = 'B/16'"),
            "[recipe.parse] expected a key of a recipe: found \"model\", which is a table (test.toml:1; its "
            "keys are model.family, model.preset, model.image_size, ...: `tessera options model` lists all)");
}

TEST(Errors, IntegersBeyond64Bits) {
  EXPECT_EQ(read_error("", {"model.depth=99999999999999999999"}),
            "[recipe.parse] model.depth must be an integer: found 99999999999999999999, an integer beyond 64 "
            "bits (--set model.depth=99999999999999999999)");
  EXPECT_NE(read_error("", {"optimizer.lr=-99999999999999999999"}).find("must be a number: found -9999"),
            std::string::npos);
  const std::string in_file = read_error("model.depth = 99999999999999999999");
  EXPECT_NE(in_file.find("'99999999999999999999' is not representable in 64 bits (test.toml:1"),
            std::string::npos)
      << in_file;
  EXPECT_EQ(read("", {"name=99999999999999999999"}).name, "99999999999999999999");
  EXPECT_EQ(read("", {"name=0123"}).name, "0123");
}

TEST(Errors, ZeroMeansNotGiven) {
  EXPECT_EQ(
      read_error("", {"train.batch=0"}),
      "[recipe.parse] train.batch or train.batch_per_rank must be above 0: found train.batch = 0 (--set "
      "train.batch=0; 0 means not given)");
  EXPECT_EQ(
      read_error("[train]\nbatch_per_rank = 0"),
      "[recipe.parse] train.batch or train.batch_per_rank must be above 0: found train.batch_per_rank = 0 "
      "(test.toml:2; 0 means not given)");
  EXPECT_EQ(read_error("train.batch = 8", {"train.batch=0"}).find("[recipe.parse] train.batch or"), 0);
  EXPECT_EQ(read_error("train.batch = 8", {"train.batch_per_rank=0"}), "no error");
  EXPECT_EQ(read_error("train.batch = 0\ntrain.batch_per_rank = 0"), "no error");  // as saved by a conversion
  EXPECT_EQ(error_text([] { parse_recipe("train.steps = 7", "test.toml", "/base", {"train.steps=0"}); }),
            "[recipe.parse] train.epochs or train.steps must be above 0: found train.steps = 0 (--set "
            "train.steps=0; 0 means not given)");
  EXPECT_EQ(
      error_text([] { parse_recipe("train.epochs = 0", "test.toml", "/base", {}); }),
      "[recipe.parse] train.epochs or train.steps must be above 0: found train.epochs = 0 (test.toml:1; 0 "
      "means not given)");
}

TEST(Errors, WrongTypes) {
  EXPECT_EQ(read_error("train.batch = '3'"),
            "[recipe.parse] train.batch must be an integer: found the text \"3\" (test.toml:1)");
  EXPECT_EQ(read_error("train.batch = 1e3"),
            "[recipe.parse] train.batch must be an integer: found the number 1000.0 (test.toml:1)");
  EXPECT_EQ(
      read_error("", {"train.batch=many"}),
      "[recipe.parse] train.batch must be an integer: found the text \"many\" (--set train.batch=many)");
  EXPECT_EQ(read_error("", {"train.batch="}),
            "[recipe.parse] train.batch must be an integer: found the text \"\" (--set train.batch=)");
  EXPECT_EQ(read_error("optimizer.lr = true"),
            "[recipe.parse] optimizer.lr must be a number: found the flag true (test.toml:1)");
  EXPECT_EQ(read_error("data.flip = 1"),
            "[recipe.parse] data.flip must be true or false: found the integer 1 (test.toml:1)");
  EXPECT_EQ(read_error("name = 7"),
            "[recipe.parse] name must be text in quotes: found the integer 7 (test.toml:1)");
  EXPECT_EQ(read_error("data.crop_scale = [1, 2, 3]"),
            "[recipe.parse] data.crop_scale must be a list of 2 numbers: found the list [1.0, 2.0, 3.0] "
            "(test.toml:1)");
  EXPECT_EQ(read_error("data.mean = 0.5"),
            "[recipe.parse] data.mean must be a list of numbers: found the number 0.5 (test.toml:1)");
  EXPECT_EQ(read_error("data.mean = ['a']"),
            "[recipe.parse] data.mean must be a list of numbers: found the list [\"a\"] (test.toml:1)");
  EXPECT_EQ(
      read_error("data.mean = ['a', 1]"),
      "[recipe.parse] data.mean must be a list of numbers: found a list that holds more than numbers or "
      "texts (test.toml:1)");
  EXPECT_EQ(read_error("data.mix = [1, 2]"),
            "[recipe.parse] data.mix must be a list of texts in quotes: found the list [1.0, 2.0] "
            "(test.toml:1)");
  EXPECT_EQ(read_error("train.seed = 2024-01-01"),
            "[recipe.parse] train.seed must be an integer: found a date or time (test.toml:1)");
}

TEST(Errors, OutOfRangeNamesTheRange) {
  EXPECT_EQ(read_error("[model]\ndepth = 0"),
            "[recipe.parse] model.depth must be between 1 and 4096: found the integer 0 (test.toml:2)");
  EXPECT_EQ(read_error("model.dropout = 1"),
            "[recipe.parse] model.dropout must be at least 0 and below 1: found the integer 1 (test.toml:1)");
  EXPECT_EQ(
      read_error("optimizer.epsilon = 0.0"),
      "[recipe.parse] optimizer.epsilon must be above 0 and at most 1: found the number 0.0 (test.toml:1)");
  EXPECT_EQ(read_error("optimizer.lr = nan"),
            "[recipe.parse] optimizer.lr must be between 0 and 1000: found the number nan (test.toml:1)");
  EXPECT_EQ(read_error("optimizer.lr = inf"),
            "[recipe.parse] optimizer.lr must be between 0 and 1000: found the number inf (test.toml:1)");
  EXPECT_EQ(read_error("data.crop_scale = [0, 1]"),
            "[recipe.parse] data.crop_scale must be above 0 and at most 1: found the list [0.0, 1.0] "
            "(test.toml:1)");
  EXPECT_EQ(read_error("train.seed = -1").substr(0, 44), "[recipe.parse] train.seed must be between 0 ");
}

TEST(Errors, AugmentationThatCannotBeRead) {
  EXPECT_EQ(read_error("train.steps = 1\ndata.auto_augment = 'rand-m9-k2'"),
            "[data.auto_augment] pieces m, n, p, mstd, mmax, inc with a number, or tNAME: found \"k2\" "
            "(rand-m9-k2; test.toml)");
  EXPECT_EQ(
      read_error("train.steps = 1\ndata.color_jitter = [0.4, 0.4]"),
      "[data.color_jitter] one number for all, three (brightness, contrast, saturation) or four (and hue): "
      "found 2 (test.toml)");
  EXPECT_EQ(read_error("train.steps = 1\ntrain.cutmix_minmax = [0.5]"),
            "[data.mix] two sides of CutMix boxes, least and most: found 1 (test.toml)");
  EXPECT_EQ(read_error("train.steps = 1\ndata.erasing_area = [0.5, 0.25]"),
            "[data.erasing] a largest area between the least and 1: found 0.25 (test.toml)");
}

TEST(Errors, Choices) {
  EXPECT_EQ(read_error("shard.level = 'zero4'"),
            "[recipe.parse] shard.level must be one of replicate, zero1, zero2, zero3: found \"zero4\" "
            "(test.toml:1; did you mean \"zero1\"?)");
  EXPECT_EQ(read_error("", {"data.on_error=explode"}),
            "[recipe.parse] data.on_error must be one of skip, fail: found \"explode\" (--set "
            "data.on_error=explode)");
  // Words of other programs.
  EXPECT_EQ(
      read_error("run.device = 'gpu'"),
      "[recipe.parse] run.device must be one of auto, cpu, cuda: found \"gpu\" (test.toml:1; did you mean "
      "\"cuda\"?)");
  EXPECT_EQ(read_error("", {"precision.compute=fp8"}),
            "[recipe.parse] precision.compute must be one of auto, fp32, bf16, fp16: found \"fp8\" (--set "
            "precision.compute=fp8; set precision.linear = \"fp8\")");
  EXPECT_EQ(read_error("\nmodel.preset = 'So40m'"),
            "[arch.vit_config] expected the name of a model, like S/16, vit_small_patch16_224 or resnet50: "
            "found \"So40m\" "
            "(did you mean \"So400m\"?; test.toml:2, model.preset)");
}

TEST(Errors, APresetBehindTheRecipesOwnSizes) {
  const std::string own = "[model]\nwidth = 32\ndepth = 12\nheads = 2\nclasses = 10\nimage_size = 32\n";
  EXPECT_EQ(read_error(own, {"model.preset=S/16"}),
            "[recipe.parse] a preset whose sizes the recipe leaves open: found --set model.preset=S/16 and "
            "model.width = 32 (test.toml:2), model.heads = 2 (test.toml:4), which win (take them out of the "
            "recipe, or --set them too)");
  EXPECT_EQ(
      read_error("[model]\nfamily = 'resnet'\nblocks = [1, 1]", {"model.preset=resnet18"}),
      "[recipe.parse] a preset whose sizes the recipe leaves open: found --set model.preset=resnet18 and "
      "model.blocks = [1.0, 1.0] (test.toml:3), which win (take them out of the recipe, or --set them too)");
  const auto width = [](const Recipe& recipe) { return recipe.model.as<arch::VitConfig>().width; };
  EXPECT_EQ(width(read(own + "preset = 'S/16'")), 32) << "the file says both";
  EXPECT_EQ(width(read(own, {"model.preset=S/16", "model.width=384", "model.heads=6"})), 384);
  EXPECT_EQ(width(read("[model]\npreset = 'Ti/16'\nclasses = 10\nimage_size = 32", {"model.preset=S/16"})),
            384);
}

TEST(Errors, BeginningsAndTeachers) {
  EXPECT_EQ(read_error("train.init_head = 'zeros'"),
            "[recipe.parse] train.init_head must be one of auto, keep, zero, fresh: found \"zeros\" "
            "(test.toml:1; did you mean \"zero\"?)");
  EXPECT_EQ(read_error("distill.alpha = 1.5"),
            "[recipe.parse] distill.alpha must be between 0 and 1: found the number 1.5 (test.toml:1)");
  EXPECT_EQ(read_error("distill.temperature = 0"),
            "[recipe.parse] distill.temperature must be above 0 and at most 1000: found the integer 0 "
            "(test.toml:1)");
  EXPECT_EQ(
      read_error("data.crop = 'squash_random'\ndata.crop_from = 200"),
      "[recipe.parse] data.crop_from must be 0 or at least model.image_size, 224: found 200 (test.toml)");
  EXPECT_EQ(
      read_error("model.distillation_token = true\nmodel.pool = 'gap'"),
      "[arch.check] distillation_token needs pool \"cls\", no registers and a linear head, as DeiT has: "
      "found another of them (test.toml, [model])");
}

TEST(Errors, KeysOfAnotherFamily) {
  EXPECT_EQ(read_error("[model]\npreset = 'resnet50'\ndepth = 3"),
            "[recipe.parse] model.depth is a key of the model families \"vit\" and \"resmlp\": found in a "
            "model of \"resnet\" (test.toml:3; drop it, or set model.family)");
  EXPECT_EQ(read_error("[model]\npreset = 'resmlp_24_224'\nheads = 3"),
            "[recipe.parse] model.heads is a key of the model family \"vit\": found in a model of \"resmlp\" "
            "(test.toml:3; drop it, or set model.family)");
  EXPECT_EQ(
      read_error("", {"model.blocks=[3]"}),
      "[recipe.parse] model.blocks is a key of the model family \"resnet\": found in a model of \"vit\" "
      "(--set model.blocks=[3]; drop it, or set model.family)");
  EXPECT_EQ(read_error("[model]\nfamily = 'vit'\npreset = 'resnet50'"),
            "[recipe.parse] model.preset must name a model of the family \"vit\": found \"resnet50\" of "
            "\"resnet\" (test.toml:3 and test.toml:2)");
  EXPECT_EQ(read_error("model.family = 'cnn'"),
            "[recipe.parse] model.family must be one of vit, resnet, resmlp: found \"cnn\" (test.toml:1)");
  EXPECT_EQ(read_error("model.preset = 'resnet5'"),
            "[arch.resnet_config] expected the name of a ResNet, like resnet50: found \"resnet5\" (did you "
            "mean \"resnet50\"?; test.toml:1, model.preset)");
  EXPECT_EQ(read_error("[model]\nfamily = 'resnet'\nblocks = [2.5]"),
            "[recipe.parse] model.blocks must be whole and between 1 and 1024: found the list [2.5] "
            "(test.toml:3)");
  EXPECT_EQ(
      read_error("[model]\nfamily = 'resnet'\nblocks = []"),
      "[arch.check] the number of stages in blocks must be between 1 and 8: found 0 (test.toml, [model])");
}

TEST(Errors, LengthOfTheRun) {
  EXPECT_EQ(error_text([] { parse_recipe("", "test.toml", "/", {}); }),
            "[recipe.parse] one of train.epochs and train.steps must be given: found neither (test.toml)");
  EXPECT_EQ(
      error_text([] { parse_recipe("[train]\nepochs = 1\nsteps = 2", "test.toml", "/", {}); }),
      "[recipe.parse] only one of train.epochs and train.steps may be given: found both (test.toml:2 and "
      "test.toml:3; drop one)");
  // Of two --set the last counts.
  const auto length = [](const std::vector<std::string>& sets) {
    const Recipe recipe = parse_recipe("train.steps = 7", "test.toml", "/", sets);
    return std::pair(recipe.train.epochs, recipe.train.steps);
  };
  EXPECT_EQ(length({"train.epochs=3", "train.steps=5"}), (std::pair<double, int64_t>(0, 5)));
  EXPECT_EQ(length({"train.steps=5", "train.epochs=3"}), (std::pair<double, int64_t>(3, 0)));
  EXPECT_EQ(length({"train.epochs=0", "train.steps=5"}), (std::pair<double, int64_t>(0, 5)));
  EXPECT_EQ(error_text([] { parse_recipe("train.steps = 6", "test.toml", "/", {"train.epochs=0"}); }),
            "[recipe.parse] train.epochs = 0 would leave the run at train.steps of test.toml:1 (--set "
            "train.epochs=0; leave it out, "
            "or set train.steps as well; to evaluate only: tessera eval)");
  EXPECT_EQ(error_text([] {
              parse_recipe("train.epochs = 6", "test.toml", "/", {"train.steps=0"});
            }).find("[recipe.parse] train.steps = 0 would leave the run at train.epochs of test.toml:1"),
            0U);
  EXPECT_EQ(
      read_error("[schedule]\nwarmup_epochs = 1\nwarmup_steps = 2"),
      "[recipe.parse] only one of schedule.warmup_epochs and schedule.warmup_steps may be given: found both "
      "(test.toml:2 and test.toml:3; drop one)");
  for (const char* length : {"step", "cooldown"}) {
    EXPECT_EQ(read_error(concat("[schedule]\n", length, "_epochs = 1\n", length, "_steps = 2")),
              concat("[recipe.parse] only one of schedule.", length, "_epochs and schedule.", length,
                     "_steps may be given: found both (test.toml:2 and test.toml:3; drop one)"));
  }
  EXPECT_EQ(read_error("[model]\nmlp_ratio = 4\nmlp_width = 2"),
            "[recipe.parse] only one of model.mlp_ratio and model.mlp_width may be given: found both "
            "(test.toml:2 and test.toml:3; drop one)");
}

TEST(Errors, Contradictions) {
  EXPECT_EQ(read_error("model.heads = 7"),
            "[arch.check] heads must divide width: found 7 heads and width 768; nearest: 6 and 8 (test.toml, "
            "[model])");
  EXPECT_EQ(read_error("[model]\nheads = 6", {"model.heads=7"}),
            "[arch.check] heads must divide width: found 7 heads and width 768; nearest: 6 and 8 (--set "
            "model.heads=7, [model])");
  EXPECT_EQ(
      read_error("", {"guard.spike_factor=0.5"}),
      "[recipe.parse] guard.spike_factor must be 0 or above 1, else half of all losses are spikes: found 0.5 "
      "(--set guard.spike_factor=0.5)");
  EXPECT_EQ(read_error("model.channels = 2"),
            "[recipe.parse] model.channels must be 1 or 3: found 2 (test.toml)");
  EXPECT_EQ(read_error("data.mean = [0.1, 0.2]"),
            "[recipe.parse] data.mean must hold one number or one a channel, 3: found 2 (test.toml)");
  EXPECT_EQ(read_error("data.std = []"),
            "[recipe.parse] data.std must hold one number or one a channel, 3: found 0 (test.toml)");
  EXPECT_EQ(read_error("data.crop_scale = [0.5, 0.25]"),
            "[recipe.parse] data.crop_scale must be [least, most]: found [0.5, 0.25] (test.toml)");
  EXPECT_EQ(read_error("data.crop_ratio = [2, 1]"),
            "[recipe.parse] data.crop_ratio must be [least, most]: found [2, 1] (test.toml)");
  EXPECT_EQ(
      read_error("[data]\nmix = ['folder:a']\nmix_weights = [1, 2, 3]"),
      "[recipe.parse] data.mix_weights must hold a number for data.source and each of data.mix, 2: found "
      "3 (test.toml)");
  EXPECT_EQ(
      read_error("[data]\nmix_weights = [1]"),
      "[recipe.parse] data.mix_weights must hold a number for data.source and each of data.mix, 1: found "
      "1 (test.toml)");
  EXPECT_EQ(read_error("[data]\nmix = ['a', 'b', 'c']\nmix_train = ['train', 'val']"),
            "[recipe.parse] data.mix_train must hold one split for all of data.mix or one each, 3: found 2 "
            "(test.toml)");
  EXPECT_EQ(read_error("[data]\nram_cache = 'part'"),
            "[recipe.parse] data.ram_cache_gib must be above 0 with data.ram_cache = \"part\": found 0 "
            "(test.toml)");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5"),
            "[recipe.parse] schedule.min_lr must be at most optimizer.lr: found 0.5 and 0.001 (test.toml)");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\nname = 'constant'"), "no error");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\nname = 'constant'\ncooldown_steps = 2"),
            "[recipe.parse] schedule.min_lr must be at most optimizer.lr: found 0.5 and 0.001 (test.toml)");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\n[optimizer]\nlr_scale = 'sqrt'"), "no error");
  EXPECT_EQ(read_error("[schedule]\nname = 'step'"),
            "[recipe.parse] one of schedule.step_epochs and schedule.step_steps must be given with "
            "schedule.name = \"step\": found neither (test.toml)");
  EXPECT_EQ(read_error("[optimizer]\nname = 'sgd'\nmomentum = 0\nnesterov = true"),
            "[recipe.parse] optimizer.momentum must be above 0 with optimizer.nesterov: found 0 (test.toml)");
  EXPECT_EQ(read_error("model.preset = 'resnet50'\nprecision.linear = 'fp8'"),
            "[recipe.parse] precision.linear = \"fp8\" needs a model whose blocks have linear layers: found "
            "model.family = \"resnet\" (test.toml)");
  EXPECT_EQ(read_error("[precision]\ncompute = 'fp16'\nlinear = 'fp8'"),
            "[recipe.parse] precision.linear = \"fp8\" needs a computation in bf16 or fp32, whose range its "
            "results have: found precision.compute = \"fp16\" (test.toml)");
}

TEST(Errors, Environment) {
  unsetenv("TESSERA_TEST_UNSET");
  EXPECT_EQ(
      read_error("[data]\nsource = 'folder:${TESSERA_TEST_UNSET}'"),
      "[recipe.parse] the environment variable TESSERA_TEST_UNSET must be set: found none (test.toml:2, "
      "data.source; set it: TESSERA_TEST_UNSET=/data/tessera_test_unset tessera ..., or give a default: "
      "${TESSERA_TEST_UNSET:-default})");
  EXPECT_EQ(
      read_error("name = '${TESSERA_TEST_UNSET}'"),
      "[recipe.parse] the environment variable TESSERA_TEST_UNSET must be set: found none (test.toml:1, "
      "name; set it, or give a default: ${TESSERA_TEST_UNSET:-default})");
  EXPECT_EQ(
      read_error("name = '${A'"),
      "[recipe.parse] expected a closing } after ${: found none in \"${A\" (test.toml:1, name; write $${ for "
      "a literal ${)");
  for (const char* bad : {"", "1A", "A B", "A:=b", "A:-${B"}) {
    EXPECT_EQ(read_error(concat("name = '${", bad, "}'")),
              concat("[recipe.parse] expected ${NAME} or ${NAME:-default}: found \"${", bad,
                     "}\" (test.toml:1, name; write $${ for a literal ${)"));
  }
}

TEST(Errors, NoToml) {
  const std::string message = read_error("name = 'a'\n[train\nbatch = 3");
  EXPECT_TRUE(message.starts_with("[recipe.parse] expected TOML: ")) << message;
  EXPECT_NE(message.find("(test.toml:2, column "), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(read_error("[#"),
            "[recipe.parse] expected TOML: found a key or table header that cannot be read (test.toml)");
  for (const char* bad : {"train.batch = 1.\u042b", "train.batch = 5g\"\"\"\"\ufe7f", "\u042b = 1"}) {
    EXPECT_TRUE(read_error(bad).starts_with("[recipe.parse] expected TOML: ")) << read_error(bad);
  }
  EXPECT_EQ(read_error("\xEF\xBB\xBFname = \"\\\"\u00e9\" # \u00e9"), "no error");
  EXPECT_TRUE(read_error("name = 'a'\nname = 'b'").starts_with("[recipe.parse] expected TOML: "));
  EXPECT_EQ(read_error("", {"train.batch"}),
            "[recipe.parse] --set train.batch has no value: expected --set train.batch=VALUE");
  EXPECT_EQ(read_error("", {"=3"}), "[recipe.parse] --set =3 has no key: expected --set KEY=3");
}

TEST(Errors, TheNameIsOneFolder) {
  for (const char* bad : {"", ".", "..", "../../escaped", "/absolute", "a/b", "a/"}) {
    EXPECT_EQ(
        read_error(concat("name = '", bad, "'")),
        concat("[recipe.parse] name must be the name of one folder, of at most 200 bytes and without /: "
               "found \"",
               bad, "\" (test.toml; run.dir says where the run lies)"));
  }
  EXPECT_EQ(
      read_error("name = '" + std::string(201, 'x') + "'"),
      "[recipe.parse] name must be the name of one folder, of at most 200 bytes and without /: found 201 "
      "bytes (test.toml; run.dir says where the run lies)");
  for (const std::string& good : {std::string(200, 'x'), std::string("..."), std::string(".hidden")}) {
    EXPECT_EQ(read_error("name = '" + good + "'"), "no error");
  }
}

TEST(Errors, TextMustBePrintable) {
  EXPECT_EQ(
      read_error("name = \"a\\nb\""),
      "[recipe.parse] name must be UTF-8 text without control characters: found \"a\\nb\" (test.toml:1)");
  for (const char* bad : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x7f"}) {
    EXPECT_NE(read_error("", {std::string("name=") + bad}).find("must be UTF-8 text"), std::string::npos);
  }
  EXPECT_EQ(read("", {"name=\u00e9 \u4e2d \U0001F600"}).name, "\u00e9 \u4e2d \U0001F600");
  // A value cannot smuggle in other keys.
  EXPECT_NE(read_error("", {"name=1\ntrain.batch = 7"}).find("must be UTF-8 text"), std::string::npos);
}

}  // namespace
}  // namespace tessera::recipe
