// SPDX-License-Identifier: Apache-2.0
// The text of every error.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

TEST(Errors, UnknownKeysNameTheNearest) {
  EXPECT_EQ(read_error("[train]\n\nbacth = 3"),
            "[recipe.parse] there is no key \"train.bacth\" (test.toml:3); did you mean \"train.batch\"?");
  EXPECT_EQ(read_error("[trian]\nbatch = 3"),
            "[recipe.parse] there is no key \"trian.batch\" (test.toml:2); did you mean \"train.batch\"?");
  EXPECT_NE(read_error("shrad.prefetch = 3").find("\"shard.prefetch\"?"), std::string::npos);
  EXPECT_EQ(read_error("", {"train.lr=1"}),
            "[recipe.parse] there is no key \"train.lr\" (--set train.lr=1); did you mean \"optimizer.lr\"?");
  EXPECT_EQ(read_error("warmup_steps = 3"),
            "[recipe.parse] there is no key \"warmup_steps\" (test.toml:1); did you mean "
            "\"schedule.warmup_steps\"?");
  EXPECT_EQ(read_error("zzzzzz = 3"),
            "[recipe.parse] there is no key \"zzzzzz\" (test.toml:1); `tessera options` lists every key");
  EXPECT_EQ(read_error("trai = 3"),
            "[recipe.parse] there is no key \"trai\" (test.toml:1); `tessera options` lists every key");
  EXPECT_NE(
      read_error("[model.width]\nx = 1").find("model.width is a table (test.toml:1): expected an integer"),
      std::string::npos);
}

TEST(Errors, ATableWhereAKeyBelongs) {
  EXPECT_EQ(
      read_error("", {"optimizer=sgd"}),
      "[recipe.parse] \"optimizer\" is a table (--set optimizer=sgd): expected a key, such as "
      "optimizer.name, optimizer.lr, optimizer.lr_scale; `tessera options optimizer` lists all of its keys");
  for (const char* set : {"train=3", "train={batch=3}"}) {
    EXPECT_EQ(read_error("", {set}), "[recipe.parse] \"train\" is a table (--set " + std::string(set) +
                                         "): expected a key, such as train.batch, train.batch_per_rank, "
                                         "train.accumulation; `tessera options train` lists all of its keys");
  }
  EXPECT_EQ(read_error("model = 'B/16'"),
            "[recipe.parse] \"model\" is a table (test.toml:1): expected a key, such as model.family, "
            "model.preset, model.image_size; `tessera options model` lists all of its keys");
}

TEST(Errors, IntegersBeyond64Bits) {
  EXPECT_EQ(read_error("", {"model.depth=99999999999999999999"}),
            "[recipe.parse] model.depth is 99999999999999999999, an integer beyond 64 bits (--set "
            "model.depth=99999999999999999999): expected an integer");
  EXPECT_NE(read_error("", {"optimizer.lr=-99999999999999999999"}).find("optimizer.lr is -9999"),
            std::string::npos);
  const std::string in_file = read_error("model.depth = 99999999999999999999");
  EXPECT_NE(in_file.find("'99999999999999999999' is not representable in 64 bits"), std::string::npos)
      << in_file;
  EXPECT_EQ(read("", {"name=99999999999999999999"}).name, "99999999999999999999");
  EXPECT_EQ(read("", {"name=0123"}).name, "0123");
}

TEST(Errors, ZeroMeansNotGiven) {
  EXPECT_EQ(read_error("", {"train.batch=0"}),
            "[recipe.parse] train.batch is 0, which means not given (--set train.batch=0): expected "
            "train.batch or train.batch_per_rank above 0");
  EXPECT_EQ(read_error("[train]\nbatch_per_rank = 0"),
            "[recipe.parse] train.batch_per_rank is 0, which means not given (test.toml:2): expected "
            "train.batch or train.batch_per_rank above 0");
  EXPECT_EQ(read_error("train.batch = 8", {"train.batch=0"})
                .find("[recipe.parse] train.batch is 0, which means not given"),
            0);
  EXPECT_EQ(read_error("train.batch = 8", {"train.batch_per_rank=0"}), "no error");
  EXPECT_EQ(read_error("train.batch = 0\ntrain.batch_per_rank = 0"), "no error");  // as saved by a conversion
  EXPECT_EQ(error_text([] { parse_recipe("train.steps = 7", "test.toml", "/base", {"train.steps=0"}); }),
            "[recipe.parse] train.steps is 0, which means not given (--set train.steps=0): expected "
            "train.epochs or train.steps above 0");
  EXPECT_EQ(error_text([] { parse_recipe("train.epochs = 0", "test.toml", "/base", {}); }),
            "[recipe.parse] train.epochs is 0, which means not given (test.toml:1): expected train.epochs or "
            "train.steps above 0");
}

TEST(Errors, WrongTypes) {
  EXPECT_EQ(read_error("train.batch = '3'"),
            "[recipe.parse] train.batch is the text \"3\" (test.toml:1): expected an integer");
  EXPECT_EQ(read_error("train.batch = 1e3"),
            "[recipe.parse] train.batch is the number 1000.0 (test.toml:1): expected an integer");
  EXPECT_EQ(read_error("", {"train.batch=many"}),
            "[recipe.parse] train.batch is the text \"many\" (--set train.batch=many): expected an integer");
  EXPECT_EQ(read_error("", {"train.batch="}),
            "[recipe.parse] train.batch is the text \"\" (--set train.batch=): expected an integer");
  EXPECT_EQ(read_error("optimizer.lr = true"),
            "[recipe.parse] optimizer.lr is the flag true (test.toml:1): expected a number");
  EXPECT_EQ(read_error("data.flip = 1"),
            "[recipe.parse] data.flip is the integer 1 (test.toml:1): expected true or false");
  EXPECT_EQ(read_error("name = 7"),
            "[recipe.parse] name is the integer 7 (test.toml:1): expected text in quotes");
  EXPECT_EQ(read_error("data.crop_scale = [1, 2, 3]"),
            "[recipe.parse] data.crop_scale is the list [1, 2, 3] (test.toml:1): expected a list of 2 "
            "numbers");
  EXPECT_EQ(read_error("data.mean = 0.5"),
            "[recipe.parse] data.mean is the number 0.5 (test.toml:1): expected a list of numbers");
  EXPECT_EQ(read_error("data.mean = ['a']"),
            "[recipe.parse] data.mean is the list [\"a\"] (test.toml:1): expected a list of numbers");
  EXPECT_EQ(read_error("data.mean = ['a', 1]"),
            "[recipe.parse] data.mean is a list that holds more than numbers or texts (test.toml:1): "
            "expected a list of numbers");
  EXPECT_EQ(read_error("data.mix = [1, 2]"),
            "[recipe.parse] data.mix is the list [1, 2] (test.toml:1): expected a list of texts in quotes");
  EXPECT_EQ(read_error("train.seed = 2024-01-01"),
            "[recipe.parse] train.seed is a date or time (test.toml:1): expected an integer");
}

TEST(Errors, OutOfRangeNamesTheRange) {
  EXPECT_EQ(read_error("[model]\ndepth = 0"),
            "[recipe.parse] model.depth is the integer 0 (test.toml:2): expected a value between 1 and 4096");
  EXPECT_EQ(
      read_error("model.dropout = 1"),
      "[recipe.parse] model.dropout is the integer 1 (test.toml:1): expected a value at least 0 and below 1");
  EXPECT_EQ(read_error("optimizer.epsilon = 0.0"),
            "[recipe.parse] optimizer.epsilon is the number 0.0 (test.toml:1): expected a value above 0 and "
            "at most 1");
  EXPECT_EQ(
      read_error("optimizer.lr = nan"),
      "[recipe.parse] optimizer.lr is the number nan (test.toml:1): expected a value between 0 and 1000");
  EXPECT_EQ(
      read_error("optimizer.lr = inf"),
      "[recipe.parse] optimizer.lr is the number inf (test.toml:1): expected a value between 0 and 1000");
  EXPECT_EQ(read_error("data.crop_scale = [0, 1]"),
            "[recipe.parse] data.crop_scale is the list [0, 1] (test.toml:1): expected values that are "
            "above 0 and at most 1");
  EXPECT_EQ(read_error("train.seed = -1").substr(0, 44), "[recipe.parse] train.seed is the integer -1 ");
}

TEST(Errors, AugmentationThatCannotBeRead) {
  EXPECT_EQ(read_error("train.steps = 1\ndata.auto_augment = 'rand-m9-k2'"),
            "[data.auto_augment] the policy \"rand-m9-k2\" has \"k2\" (test.toml): expected m, n, p, mstd, "
            "mmax or inc with a number, or tNAME");
  EXPECT_EQ(read_error("train.steps = 1\ndata.color_jitter = [0.4, 0.4]"),
            "[data.color_jitter] data.color_jitter has 2 values (test.toml): expected one for all, three "
            "(brightness, contrast, saturation) or four (and hue)");
  EXPECT_EQ(read_error("train.steps = 1\ntrain.cutmix_minmax = [0.5]"),
            "[data.mix] the number of values in train.cutmix_minmax is 1 (test.toml): expected 2: the "
            "smallest and the largest side of CutMix boxes");
  EXPECT_EQ(read_error("train.steps = 1\ndata.erasing_area = [0.5, 0.25]"),
            "[data.erasing] data.erasing_area[1] is 0.25 (test.toml): expected a value between "
            "data.erasing_area[0] and 1");
}

TEST(Errors, Choices) {
  EXPECT_EQ(read_error("shard.level = 'zero4'"),
            "[recipe.parse] shard.level is \"zero4\" (test.toml:1): expected one of replicate, zero1, zero2, "
            "zero3; did you mean \"zero1\"?");
  EXPECT_EQ(read_error("", {"data.on_error=explode"}),
            "[recipe.parse] data.on_error is \"explode\" (--set data.on_error=explode): expected one of "
            "skip, fail");
  // Words of other programs.
  EXPECT_EQ(read_error("run.device = 'gpu'"),
            "[recipe.parse] run.device is \"gpu\" (test.toml:1): expected one of auto, cpu, cuda; did you "
            "mean \"cuda\"?");
  EXPECT_EQ(read_error("", {"precision.compute=fp8"}),
            "[recipe.parse] precision.compute is \"fp8\" (--set precision.compute=fp8): expected one of "
            "auto, fp32, bf16, fp16; set precision.linear = \"fp8\"");
  EXPECT_EQ(read_error("\nmodel.preset = 'So40m'"),
            "[arch.vit_config] unknown model \"So40m\" (test.toml:2, model.preset): expected the name of a "
            "model, like S/16, vit_small_patch16_224 or resnet50; did you mean \"So400m\"?");
}

TEST(Errors, APresetBehindTheRecipesOwnSizes) {
  const std::string own = "[model]\nwidth = 32\ndepth = 12\nheads = 2\nclasses = 10\nimage_size = 32\n";
  EXPECT_EQ(read_error(own, {"model.preset=S/16"}),
            "[recipe.parse] --set model.preset=S/16 has no effect on sizes that the recipe sets: model.width "
            "= 32 (test.toml:2), model.heads = 2 (test.toml:4); remove them from the recipe, or give them by "
            "--set as well");
  EXPECT_EQ(
      read_error("[model]\nfamily = 'resnet'\nblocks = [1, 1]", {"model.preset=resnet18"}),
      "[recipe.parse] --set model.preset=resnet18 has no effect on sizes that the recipe sets: model.blocks "
      "= [1, 1] (test.toml:3); remove them from the recipe, or give them by --set as well");
  const auto width = [](const Recipe& recipe) { return recipe.model.as<arch::VitConfig>().width; };
  EXPECT_EQ(width(read(own + "preset = 'S/16'")), 32) << "the file says both";
  EXPECT_EQ(width(read(own, {"model.preset=S/16", "model.width=384", "model.heads=6"})), 384);
  EXPECT_EQ(width(read("[model]\npreset = 'Ti/16'\nclasses = 10\nimage_size = 32", {"model.preset=S/16"})),
            384);
}

TEST(Errors, BeginningsAndTeachers) {
  EXPECT_EQ(read_error("train.init_head = 'zeros'"),
            "[recipe.parse] train.init_head is \"zeros\" (test.toml:1): expected one of auto, keep, zero, "
            "fresh; did you mean \"zero\"?");
  EXPECT_EQ(read_error("distill.alpha = 1.5"),
            "[recipe.parse] distill.alpha is the number 1.5 (test.toml:1): expected a value between 0 and 1");
  EXPECT_EQ(read_error("distill.temperature = 0"),
            "[recipe.parse] distill.temperature is the integer 0 (test.toml:1): expected a value above 0 and "
            "at most 1000");
  EXPECT_EQ(
      read_error("data.crop = 'squash_random'\ndata.crop_from = 200"),
      "[recipe.parse] data.crop_from is 200 (test.toml): expected 0, or at least model.image_size (224)");
  EXPECT_EQ(read_error("model.distillation_token = true\nmodel.pool = 'gap'"),
            "[arch.check] distillation_token is true, but pool, registers or head are not those of a DeiT "
            "(test.toml, [model]): expected pool = \"cls\", registers = 0 and a linear head");
}

TEST(Errors, KeysOfAnotherFamily) {
  EXPECT_EQ(read_error("[model]\npreset = 'resnet50'\ndepth = 3"),
            "[recipe.parse] model.depth does not apply to a model of the family \"resnet\" (test.toml:3): "
            "expected a model of the family \"vit\" or \"resmlp\"; remove the key, or set model.family");
  EXPECT_EQ(read_error("[model]\npreset = 'resmlp_24_224'\nheads = 3"),
            "[recipe.parse] model.heads does not apply to a model of the family \"resmlp\" (test.toml:3): "
            "expected a model of the family \"vit\"; remove the key, or set model.family");
  EXPECT_EQ(
      read_error("", {"model.blocks=[3]"}),
      "[recipe.parse] model.blocks does not apply to a model of the family \"vit\" (--set model.blocks=[3]): "
      "expected a model of the family \"resnet\"; remove the key, or set model.family");
  EXPECT_EQ(
      read_error("[model]\nfamily = 'vit'\npreset = 'resnet50'"),
      "[recipe.parse] model.preset = \"resnet50\" is a model of the family \"resnet\", but model.family is "
      "\"vit\" (test.toml:3 and test.toml:2): expected a preset of that family; change one of the two keys");
  EXPECT_EQ(read_error("model.family = 'cnn'"),
            "[recipe.parse] model.family is \"cnn\" (test.toml:1): expected one of vit, resnet, resmlp");
  EXPECT_EQ(read_error("model.preset = 'resnet5'"),
            "[arch.resnet_config] unknown model \"resnet5\" (test.toml:1, model.preset): expected the name "
            "of a ResNet, like resnet50; did you mean \"resnet50\"?");
  EXPECT_EQ(read_error("[model]\nfamily = 'resnet'\nblocks = [2.5]"),
            "[recipe.parse] model.blocks is the list [2.5] (test.toml:3): expected values that are whole and "
            "between 1 and 1024");
  EXPECT_EQ(read_error("[model]\nfamily = 'resnet'\nblocks = []"),
            "[arch.check] the number of stages in blocks is 0 (test.toml, [model]): expected 1 to 8");
}

TEST(Errors, LengthOfTheRun) {
  EXPECT_EQ(
      error_text([] { parse_recipe("", "test.toml", "/", {}); }),
      "[recipe.parse] the length of training is not given (test.toml): expected train.epochs or train.steps");
  EXPECT_EQ(error_text([] { parse_recipe("[train]\nepochs = 1\nsteps = 2", "test.toml", "/", {}); }),
            "[recipe.parse] train.epochs and train.steps are both given (test.toml:2 and test.toml:3): "
            "expected only one of them; remove one");
  // Of two --set the last counts.
  const auto length = [](const std::vector<std::string>& sets) {
    const Recipe recipe = parse_recipe("train.steps = 7", "test.toml", "/", sets);
    return std::pair(recipe.train.epochs, recipe.train.steps);
  };
  EXPECT_EQ(length({"train.epochs=3", "train.steps=5"}), (std::pair<double, int64_t>(0, 5)));
  EXPECT_EQ(length({"train.steps=5", "train.epochs=3"}), (std::pair<double, int64_t>(3, 0)));
  EXPECT_EQ(length({"train.epochs=0", "train.steps=5"}), (std::pair<double, int64_t>(0, 5)));
  EXPECT_EQ(error_text([] { parse_recipe("train.steps = 6", "test.toml", "/", {"train.epochs=0"}); }),
            "[recipe.parse] train.epochs is 0 (--set train.epochs=0), but train.steps is given (test.toml:1) "
            "and sets the length of the run; leave train.epochs out, or set train.steps as well; to evaluate "
            "without training, use tessera eval");
  EXPECT_EQ(error_text([] { parse_recipe("train.epochs = 6", "test.toml", "/", {"train.steps=0"}); })
                .find("[recipe.parse] train.steps is 0 (--set train.steps=0), but train.epochs is given "
                      "(test.toml:1) and sets the length of the run; "),
            0U);
  EXPECT_EQ(read_error("[schedule]\nwarmup_epochs = 1\nwarmup_steps = 2"),
            "[recipe.parse] schedule.warmup_epochs and schedule.warmup_steps are both given (test.toml:2 and "
            "test.toml:3): expected only one of them; remove one");
  for (const char* length : {"step", "cooldown"}) {
    EXPECT_EQ(
        read_error(concat("[schedule]\n", length, "_epochs = 1\n", length, "_steps = 2")),
        concat("[recipe.parse] schedule.", length, "_epochs and schedule.", length,
               "_steps are both given (test.toml:2 and test.toml:3): expected only one of them; remove one"));
  }
  EXPECT_EQ(read_error("[model]\nmlp_ratio = 4\nmlp_width = 2"),
            "[recipe.parse] model.mlp_ratio and model.mlp_width are both given (test.toml:2 and "
            "test.toml:3): expected only one of them; remove one");
}

TEST(Errors, Contradictions) {
  EXPECT_EQ(read_error("model.heads = 7"),
            "[arch.check] heads is 7, which does not divide width 768 (test.toml, [model]): expected a "
            "divisor of width; nearest: 6 and 8");
  EXPECT_EQ(read_error("[model]\nheads = 6", {"model.heads=7"}),
            "[arch.check] heads is 7, which does not divide width 768 (--set model.heads=7, [model]): "
            "expected a divisor of width; nearest: 6 and 8");
  EXPECT_EQ(read_error("", {"guard.spike_factor=0.5"}),
            "[recipe.parse] guard.spike_factor is 0.5 (--set guard.spike_factor=0.5): expected 0 (off) or a "
            "value above 1; at 1 or less, half of all losses would be spikes");
  EXPECT_EQ(read_error("shard.level = 'replicate'\nshard.ranks = 2"),
            "[recipe.parse] shard.ranks is 2, but shard.level is \"replicate\" (test.toml): expected 0; "
            "shard.level = \"zero3\" splits the state over shard.ranks");
  EXPECT_EQ(
      read_error("shard.ranks = -1"),
      "[recipe.parse] shard.ranks is the integer -1 (test.toml:1): expected a value between 0 and 16777216");
  EXPECT_EQ(read_error("parallel.tensor = 2\nmodel.preset = 'resnet50'"),
            "[recipe.parse] parallel.tensor is 2, but model.family is \"resnet\" (test.toml): expected 1; "
            "tensor parallelism cuts blocks of a vit or resmlp");
  EXPECT_EQ(read_error("parallel.tensor = 0"),
            "[recipe.parse] parallel.tensor is the integer 0 (test.toml:1): expected a value between 1 and "
            "16777216");
  EXPECT_EQ(read_error("model.channels = 2"),
            "[recipe.parse] model.channels is 2 (test.toml): expected 1 or 3");
  EXPECT_EQ(
      read_error("data.mean = [0.1, 0.2]"),
      "[recipe.parse] data.mean is a list of 2 values (test.toml): expected 1 value, or one per channel (3)");
  EXPECT_EQ(
      read_error("data.std = []"),
      "[recipe.parse] data.std is a list of 0 values (test.toml): expected 1 value, or one per channel (3)");
  EXPECT_EQ(
      read_error("data.crop_scale = [0.5, 0.25]"),
      "[recipe.parse] data.crop_scale is [0.5, 0.25] (test.toml): expected [min, max] with min at most max");
  EXPECT_EQ(read_error("data.crop_ratio = [2, 1]"),
            "[recipe.parse] data.crop_ratio is [2, 1] (test.toml): expected [min, max] with min at most max");
  EXPECT_EQ(read_error("[data]\nmix = ['folder:a']\nmix_weights = [1, 2, 3]"),
            "[recipe.parse] data.mix_weights is a list of 3 values (test.toml): expected 2 values, one for "
            "data.source and one for each source in data.mix");
  EXPECT_EQ(
      read_error("[data]\nmix_weights = [1]"),
      "[recipe.parse] data.mix_weights is a list of 1 value (test.toml): expected no value without data.mix");
  EXPECT_EQ(read_error("[data]\nmix = ['a', 'b', 'c']\nmix_train = ['train', 'val']"),
            "[recipe.parse] data.mix_train is a list of 2 splits (test.toml): expected one split for all of "
            "data.mix, or one for each of its 3 sources");
  EXPECT_EQ(read_error("[data]\nram_cache = 'part'"),
            "[recipe.parse] data.ram_cache_gib is 0 (test.toml): expected a value above 0 with "
            "data.ram_cache = \"part\"");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5"),
            "[recipe.parse] schedule.min_lr is 0.5 (test.toml): expected at most optimizer.lr (0.001)");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\nname = 'constant'"), "no error");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\nname = 'constant'\ncooldown_steps = 2"),
            "[recipe.parse] schedule.min_lr is 0.5 (test.toml): expected at most optimizer.lr (0.001)");
  EXPECT_EQ(read_error("[schedule]\nmin_lr = 0.5\n[optimizer]\nlr_scale = 'sqrt'"), "no error");
  EXPECT_EQ(read_error("[schedule]\nname = 'step'"),
            "[recipe.parse] the interval of schedule.name = \"step\" is not given (test.toml): expected "
            "schedule.step_epochs or schedule.step_steps");
  EXPECT_EQ(read_error("[optimizer]\nname = 'sgd'\nmomentum = 0\nnesterov = true"),
            "[recipe.parse] optimizer.momentum is 0 (test.toml): expected a value above 0 with "
            "optimizer.nesterov = true");
  EXPECT_EQ(read_error("model.preset = 'resnet50'\nprecision.linear = 'fp8'"),
            "[recipe.parse] precision.linear is \"fp8\", but model.family is \"resnet\" (test.toml): "
            "expected a model whose blocks have linear layers (vit, resmlp); remove precision.linear");
  EXPECT_EQ(read_error("[precision]\ncompute = 'fp16'\nlinear = 'fp8'"),
            "[recipe.parse] precision.linear is \"fp8\", but precision.compute is \"fp16\" (test.toml): "
            "expected precision.compute = \"bf16\" or \"fp32\"; results of fp8 have the range of bf16");
}

TEST(Errors, Environment) {
  unsetenv("TESSERA_TEST_UNSET");
  EXPECT_EQ(read_error("[data]\nsource = 'folder:${TESSERA_TEST_UNSET}'"),
            "[recipe.parse] the environment variable TESSERA_TEST_UNSET is not set (test.toml:2, "
            "data.source); set it: TESSERA_TEST_UNSET=/data/tessera_test_unset tessera ..., or give a "
            "default: ${TESSERA_TEST_UNSET:-default}");
  EXPECT_EQ(read_error("name = '${TESSERA_TEST_UNSET}'"),
            "[recipe.parse] the environment variable TESSERA_TEST_UNSET is not set (test.toml:1, name); set "
            "it, or give a default: ${TESSERA_TEST_UNSET:-default}");
  EXPECT_EQ(read_error("name = '${A'"),
            "[recipe.parse] \"${A\" has ${ without a closing } (test.toml:1, name): expected ${NAME} or "
            "${NAME:-default}; write $${ for a literal ${");
  for (const char* bad : {"", "1A", "A B", "A:=b", "A:-${B"}) {
    EXPECT_EQ(read_error(concat("name = '${", bad, "}'")),
              concat("[recipe.parse] \"${", bad,
                     "}\" is not a valid reference to an environment variable (test.toml:1, name): expected "
                     "${NAME} or ${NAME:-default}; write $${ for a literal ${"));
  }
}

TEST(Errors, NoToml) {
  const std::string message = read_error("name = 'a'\n[train\nbatch = 3");
  EXPECT_TRUE(message.starts_with("[recipe.parse] invalid TOML in test.toml")) << message;
  EXPECT_NE(message.find("test.toml:2, column 7: "), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(read_error("[#"),
            "[recipe.parse] invalid TOML in test.toml: a key or table header cannot be read");
  for (const char* bad : {"train.batch = 1.\u042b", "train.batch = 5g\"\"\"\"\ufe7f", "\u042b = 1"}) {
    EXPECT_TRUE(read_error(bad).starts_with("[recipe.parse] invalid TOML in test.toml")) << read_error(bad);
  }
  EXPECT_EQ(read_error("\xEF\xBB\xBFname = \"\\\"\u00e9\" # \u00e9"), "no error");
  EXPECT_TRUE(read_error("name = 'a'\nname = 'b'").starts_with("[recipe.parse] invalid TOML in test.toml"));
  EXPECT_EQ(read_error("", {"train.batch"}),
            "[recipe.parse] --set train.batch has no value: expected --set train.batch=VALUE");
  EXPECT_EQ(read_error("", {"=3"}), "[recipe.parse] --set =3 has no key: expected --set KEY=3");
}

TEST(Errors, TheNameIsOneFolder) {
  for (const char* bad : {"", ".", "..", "../../escaped", "/absolute", "a/b", "a/"}) {
    EXPECT_EQ(read_error(concat("name = '", bad, "'")),
              concat("[recipe.parse] name is \"", bad,
                     "\" (test.toml): expected the name of one folder, at most 200 bytes long and without /; "
                     "run.dir sets another place for the run"));
  }
  EXPECT_EQ(read_error("name = '" + std::string(201, 'x') + "'"),
            "[recipe.parse] name is 201 bytes long (test.toml): expected the name of one folder, at most 200 "
            "bytes long and without /; run.dir sets another place for the run");
  for (const std::string& good : {std::string(200, 'x'), std::string("..."), std::string(".hidden")}) {
    EXPECT_EQ(read_error("name = '" + good + "'"), "no error");
  }
}

TEST(Errors, TextMustBePrintable) {
  EXPECT_EQ(read_error("name = \"a\\nb\""),
            "[recipe.parse] name is \"a\\nb\" (test.toml:1): expected UTF-8 text without control characters");
  for (const char* bad : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x7f"}) {
    EXPECT_NE(read_error("", {std::string("name=") + bad}).find("expected UTF-8 text"), std::string::npos);
  }
  EXPECT_EQ(read("", {"name=\u00e9 \u4e2d \U0001F600"}).name, "\u00e9 \u4e2d \U0001F600");
  // A value cannot smuggle in other keys.
  EXPECT_NE(read_error("", {"name=1\ntrain.batch = 7"}).find("expected UTF-8 text"), std::string::npos);
}

}  // namespace
}  // namespace tessera::recipe
