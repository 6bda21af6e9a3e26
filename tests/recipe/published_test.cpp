// SPDX-License-Identifier: Apache-2.0
// The recipes that follow somebody's published one, setting by setting: what each recipe is read as, defaults
// filled in, beside what its source says. A source is a program with its defaults and a command or config
// that changes some of them; the tables have the same two parts. Long because a recipe has forty settings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <variant>

#include "tessera/recipe/option.h"
#include "tests/recipe/recipe_text.h"
#include "tests/recipe/shipped.h"

namespace tessera::recipe {
namespace {

/// A value as the tables write it; any number is a double.
struct Wanted {
  Wanted(bool truth) : value(truth) {}
  Wanted(int number) : value(static_cast<double>(number)) {}
  Wanted(double number) : value(number) {}
  Wanted(const char* text) : value(std::string(text)) {}
  Wanted(std::initializer_list<double> numbers) : value(std::vector<double>(numbers)) {}
  bool operator==(const Wanted&) const = default;

  std::variant<bool, double, std::string, std::vector<double>> value;
};

using Settings = std::map<std::string, Wanted>;

/// Those of `program` but for what the command gives.
Settings with(Settings program, const Settings& command) {
  for (const auto& [key, value] : command) program.insert_or_assign(key, value);
  return program;
}

bool holds(const Value& found, const Wanted& wanted) {
  if (const auto* whole = std::get_if<int64_t>(&found)) return Wanted(static_cast<double>(*whole)) == wanted;
  if (const auto* truth = std::get_if<bool>(&found)) return Wanted(*truth) == wanted;
  if (const auto* number = std::get_if<double>(&found)) return Wanted(*number) == wanted;
  if (const auto* text = std::get_if<std::string>(&found)) return Wanted(text->c_str()) == wanted;
  const auto* list = std::get_if<std::vector<double>>(&found);
  const auto* numbers = std::get_if<std::vector<double>>(&wanted.value);
  return list != nullptr && numbers != nullptr && *list == *numbers;
}

/// What torchvision's and timm's programs, and most that are made of them, have alike.
Settings pytorch() {
  return {{"model.image_size", 224},
          {"model.channels", 3},
          {"model.classes", 1000},
          {"data.mean", {0.485, 0.456, 0.406}},
          {"data.std", {0.229, 0.224, 0.225}},
          {"data.crop", "random_resized"},
          {"data.crop_scale", {0.08, 1.0}},
          {"data.crop_ratio", {3.0 / 4.0, 4.0 / 3.0}},
          {"data.flip", true},
          {"data.repeats", 1},
          {"data.auto_augment", ""},
          {"data.erasing", 0},
          {"data.eval_crop", "center"},
          {"data.eval_crop_ratio", 0.875},
          {"train.label_smoothing", 0},
          {"train.mixup", 0},
          {"train.cutmix", 0},
          {"train.clip", 0},
          {"loss.name", "ce"},
          {"optimizer.beta1", 0.9},
          {"optimizer.beta2", 0.999},
          {"optimizer.epsilon", 1e-8},
          {"optimizer.layer_decay", 1},
          {"optimizer.no_decay", "auto"},
          {"schedule.warmup_from", 0},
          {"schedule.min_lr", 0},
          {"ema.decay", 0}};
}

/// Of a ViT in timm or torchvision.
Settings vit_settings() {
  return with(pytorch(), {{"model.patch_size", 16},
                          {"model.width", 768},
                          {"model.depth", 12},
                          {"model.heads", 12},
                          {"model.mlp_width", 3072},
                          {"model.class_token", true},
                          {"model.distillation_token", false},
                          {"model.pool", "cls"},
                          {"model.head", "linear"},
                          {"model.head_bias", 0},
                          {"model.head_zero_init", false},
                          {"model.position_embedding", "learned"},
                          {"model.layer_scale", 0},
                          {"model.drop_path", 0},
                          {"model.dropout", 0},
                          {"model.norm_epsilon", 1e-6},
                          {"model.init", "timm"}});
}

/// get_args_parser() of facebookresearch/deit's main.py, and its datasets.py: batch 64 on each GPU, rates for
/// a batch of 512.
Settings deit_program() {
  return with(vit_settings(), {{"model.drop_path", 0.1},
                               {"data.interpolation", "bicubic"},
                               {"data.augment_interpolation", "same"},
                               {"data.repeats", 3},
                               {"data.auto_augment", "rand-m9-mstd0.5-inc1"},
                               {"data.erasing", 0.25},
                               {"data.erasing_mode", "pixel"},
                               {"data.erasing_count", 1},
                               {"train.epochs", 300},
                               {"train.label_smoothing", 0.1},
                               {"train.mixup", 0.8},
                               {"train.cutmix", 1},
                               {"train.mix_prob", 1},
                               {"train.mix_switch_prob", 0.5},
                               {"train.mix_mode", "batch"},
                               {"train.mix_group", 64},
                               {"optimizer.name", "adamw"},
                               {"optimizer.weight_decay", 0.05},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_epochs", 5},
                               {"schedule.warmup_from", 1e-6},
                               {"schedule.warmup_inside", true},
                               {"schedule.min_lr", 1e-5},
                               {"ema.decay", 0.99996},
                               {"ema.every", 1}});
}

/// README_deit.md: 2 nodes of 8 GPUs.
Settings deit() {
  return with(deit_program(), {{"train.batch", 1024},
                               {"optimizer.lr", 5e-4},
                               {"optimizer.lr_scale", "linear"},
                               {"optimizer.lr_batch", 512}});
}

/// --model deit_base_distilled_patch16_224 --distillation-type hard
Settings deit_distilled() {
  return with(deit(), {{"model.distillation_token", true},
                       {"distill.kind", "hard"},
                       {"distill.alpha", 0.5},
                       {"distill.temperature", 1}});
}

/// --batch-size 32 --nodes 2 --input-size 384 --lr 5e-6 --weight-decay 1e-8 --epochs 30 --min-lr 5e-6
Settings deit_384() {
  return with(deit_program(), {{"model.image_size", 384},
                               {"train.batch", 512},
                               {"train.mix_group", 32},
                               {"train.epochs", 30},
                               {"train.init_positions", "bicubic"},
                               {"optimizer.lr", 5e-6},
                               {"optimizer.weight_decay", 1e-8},
                               {"schedule.min_lr", 5e-6}});
}

/// README_revenge.md, deit_base_patch16_LS: --batch 256 on 8 GPUs --lr 3e-3 --epochs 800 --input-size 192
/// --reprob 0
/// --smoothing 0 --opt fusedlamb (which clips to 1) --drop-path 0.2 --unscale-lr --bce-loss --color-jitter
/// 0.3
/// --ThreeAugment. Its paper's table 1: test crop ratio 1.0.
Settings deit3() {
  return with(deit_program(), {{"model.image_size", 192},
                               {"model.layer_scale", 1e-4},
                               {"model.drop_path", 0.2},
                               {"data.auto_augment", "3a"},
                               {"data.color_jitter", {0.3}},
                               {"data.erasing", 0},
                               {"data.erasing_mode", "const"},  // of nothing that is erased
                               {"data.eval_crop_ratio", 1},
                               {"train.batch", 2048},
                               {"train.mix_group", 256},
                               {"train.epochs", 800},
                               {"train.label_smoothing", 0},
                               {"train.clip", 1},
                               {"loss.name", "bce"},
                               {"loss.threshold", 0},
                               {"optimizer.name", "lamb"},
                               {"optimizer.lr", 3e-3}});
}

/// --batch 64 on 8 GPUs --lr 1e-5 --epochs 20 --weight-decay 0.1 --reprob 0 --drop-path 0.2 --no-repeated-aug
Settings deit3_224() {
  return with(deit_program(), {{"model.layer_scale", 1e-4},
                               {"model.drop_path", 0.2},
                               {"data.erasing", 0},
                               {"data.erasing_mode", "const"},
                               {"data.repeats", 1},
                               {"data.eval_crop_ratio", 1},
                               {"train.batch", 512},
                               {"train.epochs", 20},
                               {"optimizer.lr", 1e-5},
                               {"optimizer.weight_decay", 0.1}});
}

/// arXiv 2105.03404 (LAMB, lr 5e-3, weight decay 0.2, 400 epochs, "the rest follows DeiT"), README_resmlp.md
/// (crop ratio 0.9), resmlp_models.py (scales begin at 1e-5).
Settings resmlp() {
  Settings settings = with(deit_program(), {{"model.family", "resmlp"},
                                            {"model.width", 384},
                                            {"model.depth", 24},
                                            {"model.mlp_width", 1536},
                                            {"model.layer_scale", 1e-5},
                                            {"data.eval_crop_ratio", 0.9},
                                            {"train.batch", 1024},
                                            {"train.epochs", 400},
                                            {"train.clip", 1},
                                            {"optimizer.name", "lamb"},
                                            {"optimizer.lr", 5e-3},
                                            {"optimizer.weight_decay", 0.2}});
  // A ResMLP has none of these.
  std::erase_if(settings, [](const auto& setting) {
    const std::set<std::string> kept = {
        "model.family", "model.image_size", "model.channels",  "model.classes",   "model.patch_size",
        "model.width",  "model.depth",      "model.mlp_width", "model.drop_path", "model.layer_scale"};
    return setting.first.starts_with("model.") && !kept.contains(setting.first);
  });
  return settings;
}

/// timm's bits_and_tpu: the command of timm/bits/README.md (launch_xla.py --num-devices 8 train.py --model
/// resmlp_24_224
/// --opt adamw --opt-eps 1e-6 --clip-grad 1.0 --drop-path 0.1 --mixup 0.5 --cutmix 1.0 --aa
/// rand-m6-n4-mstd1.0-inc1
/// --weight-decay .08 --model-ema-decay 0.99993 --sched cosine --warmup-lr 1e-6 --warmup-epochs 20 --epochs
/// 500 --lr 8.8e-4 -b 256), and of its train.py smoothing 0.1, min-lr 1e-5, cooldown-epochs 10 (trained after
/// the 500), interpolation random.
Settings resmlp_bits() {
  return with(resmlp(), {{"model.drop_path", 0.1},
                         {"data.repeats", 1},
                         {"data.auto_augment", "rand-m6-n4-mstd1.0-inc1"},
                         {"data.augment_interpolation", "random"},
                         {"data.erasing", 0},
                         {"data.erasing_mode", "const"},
                         {"data.eval_crop_ratio", 0.875},
                         {"train.batch", 2048},
                         {"train.mix_group", 256},
                         {"train.epochs", 510},
                         {"train.clip", 1},
                         {"train.label_smoothing", 0.1},
                         {"train.mixup", 0.5},
                         {"train.cutmix", 1},
                         {"optimizer.name", "adamw"},
                         {"optimizer.epsilon", 1e-6},
                         {"optimizer.lr", 8.8e-4},
                         {"optimizer.lr_scale", "none"},
                         {"optimizer.weight_decay", 0.08},
                         {"schedule.warmup_epochs", 20},
                         {"schedule.cooldown_epochs", 10},
                         {"schedule.min_lr", 1e-5},
                         {"ema.decay", 0.99993},
                         {"shard.level", "replicate"}});
}

/// facebookresearch/mae: main_finetune.py's defaults, util/datasets.py, FINETUNE.md (4 nodes of 8 GPUs
/// --batch_size 32
/// --epochs 100 --blr 5e-4 --layer_decay 0.65 --weight_decay 0.05 --drop_path 0.1 --reprob 0.25 --mixup 0.8
/// --cutmix 1.0).
Settings mae() {
  return with(vit_settings(), {{"model.pool", "gap"},
                               {"model.norm_before_pool", false},
                               {"model.drop_path", 0.1},
                               {"data.interpolation", "bicubic"},
                               {"data.auto_augment", "rand-m9-mstd0.5-inc1"},
                               {"data.erasing", 0.25},
                               {"data.erasing_mode", "pixel"},
                               {"data.erasing_count", 1},
                               {"train.batch", 1024},
                               {"train.epochs", 100},
                               {"train.label_smoothing", 0.1},
                               {"train.mixup", 0.8},
                               {"train.cutmix", 1},
                               {"train.mix_group", 32},
                               {"train.init_head", "zero"},
                               {"optimizer.name", "adamw"},
                               {"optimizer.lr", 5e-4},
                               {"optimizer.lr_scale", "linear"},
                               {"optimizer.lr_batch", 256},
                               {"optimizer.weight_decay", 0.05},
                               {"optimizer.layer_decay", 0.65},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_epochs", 5},
                               {"schedule.warmup_inside", false},
                               {"schedule.min_lr", 1e-6}});
}

/// references/classification of pytorch/vision: --model vit_b_16 --epochs 300 on 64 GPUs --batch-size 64
/// --opt adamw --lr 0.003 --wd 0.3 --lr-scheduler cosineannealinglr --lr-warmup-method linear
/// --lr-warmup-epochs 30 --lr-warmup-decay 0.033 --label-smoothing 0.11 --mixup-alpha 0.2 --auto-augment ra
/// --clip-grad-norm 1 --ra-sampler --cutmix-alpha 1.0
/// --model-ema.
Settings torchvision() {
  return with(vit_settings(), {{"data.interpolation", "bilinear"},
                               {"data.repeats", 3},
                               {"data.auto_augment", "tv-randaug:2,9"},
                               {"train.batch", 4096},
                               {"train.epochs", 300},
                               {"train.clip", 1},
                               {"train.label_smoothing", 0.11},
                               {"train.mixup", 0.2},
                               {"train.cutmix", 1},
                               {"train.mix_prob", 1},
                               {"train.mix_switch_prob", 0.5},
                               {"train.mix_group", 64},
                               {"optimizer.name", "adamw"},
                               {"optimizer.lr", 3e-3},
                               {"optimizer.weight_decay", 0.3},
                               {"optimizer.no_decay", "none"},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_epochs", 30},
                               {"schedule.warmup_from", 9.9e-5},
                               {"schedule.warmup_inside", false},
                               {"ema.decay", 0.99126},  // 1 - (1 - 0.99998) * 4096 * 32 / 300
                               {"ema.every", 32}});
}

/// google-research/big_vision: what configs/vit_s16_i1k.py and configs/vit_i1k.py have alike.
Settings big_vision() {
  return with(vit_settings(), {{"model.init", "big_vision"},
                               {"model.head", "tanh"},
                               {"model.head_zero_init", true},
                               {"data.crop", "inception"},
                               {"data.crop_scale", {0.05, 1.0}},
                               {"data.mean", {0.5}},
                               {"data.std", {0.5}},
                               {"data.interpolation", "bilinear"},
                               {"train.clip", 1},
                               {"train.mix_at_least_half", true},
                               {"train.mix_mode", "batch"},
                               {"optimizer.name", "adamw"},
                               {"optimizer.lr", 1e-3},
                               {"optimizer.weight_decay", 1e-4 / 1e-3},  // theirs is not multiplied by lr
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_steps", 10000},
                               {"schedule.warmup_inside", false}});
}

/// configs/vit_s16_i1k.py
Settings bv_s16() {
  return with(big_vision(), {{"model.width", 384},
                             {"model.heads", 6},
                             {"model.mlp_width", 1536},
                             {"model.class_token", false},
                             {"model.pool", "gap"},
                             {"model.norm_before_pool", true},
                             {"model.position_embedding", "sincos2d"},
                             {"data.auto_augment", "bv-randaug:2,10"},
                             {"train.batch", 1024},
                             {"train.steps", 112603},
                             {"train.mixup", 0.2},
                             {"train.mix_group", 1024}});
}

/// EIFY/mup-vit: torchvision's crop and RandAugment in place of big_vision's.
Settings bv_s16_torch() {
  return with(bv_s16(), {{"data.crop", "random_resized"}, {"data.auto_augment", "tv-randaug:2,10"}});
}

/// configs/vit_i1k.py:variant=B/16, which makes aug = medium2
Settings augreg() {
  return with(big_vision(), {{"model.head_bias", -6.9},
                             {"data.auto_augment", "bv-randaug:2,15"},
                             {"train.batch", 4096},
                             {"train.epochs", 300},
                             {"train.mixup", 0.5},
                             {"train.mix_group", 4096},
                             {"loss.name", "sigmoid"},
                             {"loss.threshold", -1}});
}

/// google-research/vision_transformer's fine-tuning (configs/common.py, configs/augreg.py); the file's name
/// B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_384.npz.
Settings augreg_finetune() {
  return with(vit_settings(), {{"model.image_size", 384},
                               {"data.crop", "squash_random"},
                               {"data.crop_from", 448},
                               {"data.mean", {0.5}},
                               {"data.std", {0.5}},
                               {"data.interpolation", "bilinear"},
                               {"data.eval_crop", "squash"},
                               {"train.init_positions", "linear"},
                               {"train.init_head", "zero"},
                               {"train.batch", 512},
                               {"train.steps", 20000},
                               {"train.clip", 1},
                               {"optimizer.name", "sgd"},
                               {"optimizer.lr", 0.01},
                               {"optimizer.momentum", 0.9},
                               {"optimizer.nesterov", false},
                               {"optimizer.weight_decay", 0},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_steps", 500}});
}

/// rosetta/projects/vit of NVIDIA/JAX-Toolbox: ViTPipeline of dali_utils.py, for both trainings.
Settings rosetta() {
  return with(vit_settings(), {{"data.auto_augment", "original"},
                               {"data.color_jitter", {0.4, 0.4, 0.4}},
                               {"data.interpolation", "bilinear"},
                               {"data.eval_crop", "squash"},
                               {"train.clip", 1},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_inside", false},
                               {"schedule.min_lr", 1e-5}});
}

/// configs/pretrain.gin, base_pretrain_imagenet.gin, layers.py
Settings rosetta_pretrain() {
  return with(rosetta(), {{"model.head", "tanh"},
                          {"model.head_zero_init", true},
                          {"model.init", "big_vision"},
                          {"model.dropout", 0.1},
                          {"model.norm_epsilon", 1e-5},
                          {"train.batch", 4096},
                          {"train.steps", 95000},
                          {"optimizer.name", "adamw"},
                          {"optimizer.lr", 3e-3},
                          {"optimizer.weight_decay", 0.3},
                          {"optimizer.no_decay", "none"},
                          {"schedule.warmup_steps", 10000},
                          {"schedule.cooldown_steps", 10000}});
}

/// configs/finetune.gin, base_finetune_imagenet.gin
Settings rosetta_finetune() {
  return with(rosetta(), {{"model.image_size", 384},
                          {"train.init_positions", "linear"},
                          {"train.init_head", "zero"},
                          {"train.batch", 512},
                          {"train.steps", 20000},
                          {"optimizer.name", "sgd"},
                          {"optimizer.lr", 3e-3},
                          {"optimizer.momentum", 0.9},
                          {"optimizer.nesterov", false},
                          {"optimizer.weight_decay", 0},
                          {"schedule.warmup_steps", 0}});
}

/// test/test_train_mp_imagenet_fsdp.py of pytorch/xla with docs/fsdp.md's flags.
Settings resnet50() {
  return with(pytorch(), {{"model.family", "resnet"},
                          {"model.block", "bottleneck"},
                          {"model.blocks", {3, 4, 6, 3}},
                          {"model.batch_norm_sync", false},
                          {"data.interpolation", "bilinear"},
                          {"train.batch", 1024},
                          {"train.epochs", 100},
                          {"train.eval_every_epochs", 10},
                          {"optimizer.name", "sgd"},
                          {"optimizer.lr", 0.4},
                          {"optimizer.momentum", 0.9},
                          {"optimizer.nesterov", false},
                          {"optimizer.weight_decay", 1e-4},
                          {"optimizer.no_decay", "none"},
                          {"schedule.name", "step"},
                          {"schedule.warmup_epochs", 5},
                          {"schedule.step_epochs", 30},
                          {"schedule.factor", 0.1},
                          {"shard.level", "zero3"},
                          {"checkpoint.every_epochs", 10}});
}

/// run_vit_training.py of ronghanghu/vit_10b_fsdp_example, its defaults.
Settings ten_billion() {
  return with(vit_settings(), {{"model.patch_size", 14},
                               {"model.width", 5120},
                               {"model.depth", 32},
                               {"model.heads", 32},
                               {"model.mlp_width", 20480},
                               {"model.class_token", false},
                               {"model.pool", "gap"},
                               {"model.norm_before_pool", true},
                               {"data.interpolation", "bicubic"},
                               {"train.batch", 1024},
                               {"train.epochs", 300},
                               {"train.eval_every_epochs", 10},
                               {"train.clip", 1},
                               {"optimizer.name", "adamw"},
                               {"optimizer.lr", 1e-3},
                               {"optimizer.weight_decay", 0.1},
                               {"optimizer.no_decay", "none"},
                               {"schedule.name", "cosine"},
                               {"schedule.warmup_steps", 10000},
                               {"schedule.warmup_inside", false},
                               {"shard.level", "zero3"},
                               {"shard.recompute", true},
                               {"precision.compute", "bf16"}});
}

/// The same program; its README speaks of models of 60 billion parameters, sizes and rate are chosen here.
Settings sixty_billion() {
  return with(ten_billion(), {{"model.width", 10240},
                              {"model.depth", 48},
                              {"model.heads", 64},
                              {"model.mlp_width", 40960},
                              {"optimizer.lr", 5e-4}});
}

/// Galvatron's ViT: vit/scripts/train_vit_large.sh, vit/train.py (Hugging Face's model, torch.optim.Adam over
/// all parameters), vit/config.py and vit/data/build.py (Swin's).
Settings galvatron_large() {
  return with(vit_settings(), {{"model.width", 1024},
                               {"model.depth", 24},
                               {"model.heads", 16},
                               {"model.mlp_width", 4096},
                               {"model.norm_epsilon", 1e-12},
                               {"data.interpolation", "bicubic"},
                               {"data.auto_augment", "rand-m9-mstd0.5-inc1"},
                               {"data.erasing", 0.25},
                               {"data.erasing_mode", "pixel"},
                               {"data.erasing_count", 1},
                               {"train.batch", 8},
                               {"train.epochs", 10},
                               {"optimizer.name", "adam"},
                               {"optimizer.lr", 3e-5},
                               {"optimizer.weight_decay", 0.01},
                               {"optimizer.no_decay", "none"},
                               {"schedule.name", "constant"},
                               {"schedule.warmup_epochs", 0}});
}

/// vit/scripts/train_vit_huge.sh
Settings galvatron_huge() {
  return with(galvatron_large(), {{"model.width", 1280}, {"model.depth", 32}, {"model.mlp_width", 5120}});
}

const std::map<std::string, Settings>& published() {
  static const std::map<std::string, Settings> all = {
      {"deit_b16", deit()},
      {"deit_b16_distilled", deit_distilled()},
      {"deit_b16_384", deit_384()},
      {"deit3_b16_192", deit3()},
      {"deit3_b16_224", deit3_224()},
      {"resmlp_24", resmlp()},
      {"resmlp_24_bits", resmlp_bits()},
      {"mae_finetune_b16", mae()},
      {"tv_b16", torchvision()},
      {"bv_s16_90ep", bv_s16()},
      {"bv_s16_90ep_torch", bv_s16_torch()},
      {"augreg_b16_i1k", augreg()},
      {"augreg_21k_ft_b16_384", augreg_finetune()},
      {"rosetta_b16", rosetta_pretrain()},
      {"rosetta_b16_384", rosetta_finetune()},
      {"resnet50_imagenet", resnet50()},
      {"vit_10b", ten_billion()},
      {"vit_60b", sixty_billion()},
      {"vit_large", galvatron_large()},
      {"vit_huge", galvatron_huge()},
  };
  return all;
}

std::string names(const testing::TestParamInfo<std::string>& info) { return info.param; }

std::vector<std::string> all_published() {
  std::vector<std::string> list;
  for (const auto& [name, settings] : published()) list.push_back(name);
  return list;
}

class Published : public testing::TestWithParam<std::string> {};

TEST_P(Published, EverySettingIsItsSources) {
  const Recipe recipe = shipped(GetParam());
  const Settings& settings = published().at(GetParam());
  EXPECT_GE(settings.size(), 35U);
  for (const auto& [key, wanted] : settings) {
    const Option* option = find_option(key);
    ASSERT_NE(option, nullptr) << key;
    ASSERT_TRUE(option->applies_to(recipe)) << key;
    EXPECT_TRUE(holds(option->get(recipe), wanted)) << key << " = " << to_text(option->get(recipe));
  }
}

// What a recipe says, and the source does not, would be of our own making: each key that changes something is
// in the table above, but for those that no other program has.
TEST_P(Published, NothingIsSaidThatTheSourceDoesNotSay) {
  const std::set<std::string> ours = {
      "name",          "data.source", "train.init_from", "distill.teacher", "train.eval_every_epochs",
      "shard.prefetch"};
  const Recipe recipe = shipped(GetParam());
  const Recipe plain = parse_recipe("train.epochs = 1", "plain", "/", {"train.batch=1"});
  for (const Option& option : options()) {
    if (!option.get || !option.applies_to(recipe) || ours.contains(option.key)) continue;
    if (!option.applies_to(plain) || option.get(recipe) == option.get(plain)) continue;
    if (option.key == "train.epochs" && recipe.train.steps > 0) continue;
    EXPECT_TRUE(published().at(GetParam()).contains(option.key))
        << option.key << " = " << to_text(option.get(recipe));
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Published, testing::ValuesIn(all_published()), names);

TEST(PublishedRecipes, AreAllInTheTable) {
  const std::set<std::string> own = {"quickstart",     "fashion_mnist",        "mnist",    "clothing160",
                                     "clothing160_96", "clothing160_finetune", "vit_120b", "four_ranks"};
  for (const auto& file : std::filesystem::directory_iterator(shipped_recipes())) {
    if (file.path().extension() != ".toml") continue;
    const std::string name = file.path().stem();
    EXPECT_NE(own.contains(name), published().contains(name)) << name;
  }
}

}  // namespace
}  // namespace tessera::recipe
