// SPDX-License-Identifier: Apache-2.0
// The rows of [model]: what every family has, and the keys of each.
#include <cmath>

#include "tessera/recipe/option_rows.h"

namespace tessera::recipe {
namespace {

// A field of the model's config, where the model is of the family.
#define TESSERA_VIT(path) TESSERA_FIELD(model.template as<arch::VitConfig>().path)
#define TESSERA_RESNET(path) TESSERA_FIELD(model.template as<arch::ResNetConfig>().path)
// One that a ViT and a ResMLP have alike.
#define TESSERA_OF_PATCHES(path)                                              \
  [](auto& recipe) -> auto& {                                                 \
    const bool is_mlp = recipe.model.family() == arch::ResMlpConfig::kFamily; \
    return is_mlp ? recipe.model.template as<arch::ResMlpConfig>().path       \
                  : recipe.model.template as<arch::VitConfig>().path;         \
  }

void append(std::vector<Option>& table, const std::vector<std::string>& families, std::vector<Option> rows) {
  for (Option& option : rows) {
    option.families = families;
    table.push_back(std::move(option));
  }
}

/// Another family than the recipe's starts from that family's defaults.
Option family() {
  Option option =
      row("model.family", Type::kText,
          "Model architecture: Vision Transformer, ResNet or ResMLP; each has its own further keys");
  option.choices = arch::families();
  option.set = [](Recipe& r, const Value& v) {
    const auto& name = std::get<std::string>(v);
    if (r.model.family() != name) r.model = arch::default_model(name);
  };
  option.get = [](const Recipe& r) -> Value { return r.model.family(); };
  return option;
}

/// Of all models that cut an image into patches.
void add_of_patches(std::vector<Option>& table) {
  append(
      table, {arch::VitConfig::kFamily, arch::ResMlpConfig::kFamily},
      {integer("model.patch_size", "Height and width of a patch, in pixels; must divide image_size",
               {1, 1 << 16}, TESSERA_OF_PATCHES(patch_size)),
       integer("model.width", "Embedding dimension: features per token (timm: embed_dim)", {1, 1 << 20},
               TESSERA_OF_PATCHES(width)),
       integer("model.depth", "Number of blocks (timm: depth)", {1, 4096}, TESSERA_OF_PATCHES(depth)),
       integer("model.mlp_width",
               "Hidden dimension of each block's MLP; if not given, width times the MLP ratio of the preset",
               {1, 1 << 22}, TESSERA_OF_PATCHES(mlp_width)),
       shorthand("model.mlp_ratio", Type::kNumber,
                 "MLP ratio: mlp_width = mlp_ratio x width (timm: mlp_ratio); set either this or mlp_width",
                 {0, 1024, true}),
       number("model.layer_scale",
              "Initial value of LayerScale (timm: init_values); in a ViT, 0 = no LayerScale", {0, 1e6},
              TESSERA_OF_PATCHES(layer_scale)),
       number("model.drop_path",
              "Stochastic depth rate (timm: --drop-path); in a ViT it rises linearly from 0 to this; 0 = off",
              kRate, TESSERA_OF_PATCHES(drop_path))});
}

void add_vit(std::vector<Option>& table) {
  using arch::Head, arch::Pool, arch::PositionEmbedding;
  append(
      table, {arch::VitConfig::kFamily},
      {integer("model.heads", "Number of attention heads; must divide width (timm: num_heads)", {1, 1 << 16},
               TESSERA_VIT(heads)),
       integer("model.registers", "Number of register tokens (timm: reg_tokens); 0 = none", {0, 1 << 16},
               TESSERA_VIT(registers)),
       flag("model.class_token", "Add a trained class token; pool = \"cls\" needs it (timm: class_token)",
            TESSERA_VIT(class_token)),
       flag("model.distillation_token",
            "Add a distillation token with its own head, trained on the output of distill.teacher (DeiT)",
            TESSERA_VIT(distillation_token)),
       choice<Pool>(
           "model.pool",
           "Classifier input: class token (cls), mean of the patch tokens (gap) or attention pooling (map)",
           {{"cls", Pool::kClassToken}, {"gap", Pool::kAverage}, {"map", Pool::kAttention}},
           TESSERA_VIT(pool)),
       flag("model.norm_before_pool",
            "Only for pool = \"gap\": final LayerNorm before averaging (big_vision); false = after it (timm)",
            TESSERA_VIT(norm_before_pool)),
       choice<PositionEmbedding>(
           "model.position_embedding",
           "Position embedding: trained (learned) or fixed 2D sines and cosines (sincos2d)",
           {{"learned", PositionEmbedding::kLearned}, {"sincos2d", PositionEmbedding::kSinCos2d}},
           TESSERA_VIT(position_embedding)),
       choice<Head>("model.head",
                    "Classifier: one linear layer (linear), or a hidden layer of model.width with tanh "
                    "before it (tanh)",
                    {{"linear", Head::kLinear}, {"tanh", Head::kTanh}}, TESSERA_VIT(head)),
       flag("model.qk_norm", "Apply LayerNorm to the queries and keys of each attention head (timm: qk_norm)",
            TESSERA_VIT(qk_norm)),
       number("model.dropout",
              "Dropout rate in the stem, attention projections, MLPs and head (timm: --drop); 0 = off", kRate,
              TESSERA_VIT(dropout)),
       number("model.norm_epsilon", "Epsilon added to the variance in every LayerNorm (PyTorch: eps)",
              {0, 1, true}, TESSERA_VIT(norm_epsilon)),
       number("model.head_bias",
              "Initial value of the classifier's bias; -6.9 suits sigmoid losses with 1,000 classes",
              {-1000, 1000}, TESSERA_VIT(head_bias)),
       flag("model.head_zero_init",
            "Initialise the classifier's weights with zeros; false = not zero, even with init = "
            "\"big_vision\"",
            TESSERA_VIT(head_zero_init)),
       choice<arch::InitialValues>(
           "model.init",
           "Initialisation scheme of all weights: timm's ViT defaults (std 0.02) or big_vision's (Xavier, "
           "LeCun)",
           {{"timm", arch::InitialValues::kTimm}, {"big_vision", arch::InitialValues::kBigVision}},
           TESSERA_VIT(initial_values))});
}

void add_resnet(std::vector<Option>& table) {
  append(
      table, {arch::ResNetConfig::kFamily},
      {choice<bool>("model.block",
                    "Residual block: two 3x3 convolutions (basic), or 1x1, 3x3 and 1x1 (bottleneck)",
                    {{"basic", false}, {"bottleneck", true}}, TESSERA_RESNET(bottleneck)),
       counts("model.blocks",
              "Number of blocks in each of 1 to 8 stages; every stage but the first halves the resolution",
              {1, 1024}, TESSERA_RESNET(blocks)),
       integer(
           "model.base_width",
           "Channels of the stem and of the first stage's 3x3 convolutions; each later stage doubles them",
           {1, 1 << 16}, TESSERA_RESNET(base_width)),
       flag("model.zero_init_residual",
            "Initialise the last BatchNorm weight of each block with 0 (torchvision: zero_init_residual)",
            TESSERA_RESNET(zero_init_residual)),
       flag("model.batch_norm_sync",
            "Compute batch statistics over the samples of all ranks (SyncBatchNorm); false = per rank",
            TESSERA_RESNET(batch_norm_sync)),
       number("model.batch_norm_momentum",
              "Weight of the current batch in BatchNorm's running statistics (PyTorch: momentum)",
              {0, 1, true}, TESSERA_RESNET(batch_norm_momentum)),
       number("model.batch_norm_epsilon", "Epsilon added to the variance in every BatchNorm (PyTorch: eps)",
              {0, 1, true}, TESSERA_RESNET(batch_norm_epsilon))});
}

#undef TESSERA_VIT
#undef TESSERA_OF_PATCHES
#undef TESSERA_RESNET

}  // namespace

void add_model_options(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      family(),
      shorthand(
          "model.preset", Type::kText,
          "Named model, such as \"S/16\" or \"resnet50\" (list: tessera models); other given model keys "
          "override it"),
      integer("model.image_size", "Height and width of the input images, in pixels (timm: --img-size)",
              {1, 1 << 16}, TESSERA_FIELD(model.image_size())),
      integer("model.channels", "Number of image channels: 1 = grey, 3 = RGB (timm: in_chans)", {1, 3},
              TESSERA_FIELD(model.channels())),
      integer("model.classes", "Number of classes that the model predicts (timm: --num-classes)",
              {1, 1 << 27}, TESSERA_FIELD(model.classes())),
  };
  table.insert(table.end(), rows.begin(), rows.end());
  add_of_patches(table);
  add_vit(table);
  add_resnet(table);
}

}  // namespace tessera::recipe
