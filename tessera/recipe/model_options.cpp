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
  Option option = row("model.family", Type::kText, "kind of model; each has keys of its own");
  option.choices = arch::families();
  option.set = [](Recipe& r, const Value& v) {
    const auto& name = std::get<std::string>(v);
    if (r.model.family() != name) r.model = arch::default_model(name);
  };
  option.get = [](const Recipe& r) -> Value { return r.model.family(); };
  return option;
}

template <typename Field>
Option counts(std::string key, std::string help, Range range, Field field) {
  range.whole = true;
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) {
    field(r).clear();
    for (const double count : std::get<std::vector<double>>(v)) field(r).push_back(std::llround(count));
  };
  option.get = [field](const Recipe& r) -> Value {
    return std::vector<double>(field(r).begin(), field(r).end());
  };
  return option;
}

/// Of all models that cut an image into patches.
void add_of_patches(std::vector<Option>& table) {
  append(table, {arch::VitConfig::kFamily, arch::ResMlpConfig::kFamily},
         {integer("model.patch_size", "pixels, divides image_size", {1, 1 << 16},
                  TESSERA_OF_PATCHES(patch_size)),
          integer("model.width", "numbers a token", {1, 1 << 20}, TESSERA_OF_PATCHES(width)),
          integer("model.depth", "blocks", {1, 4096}, TESSERA_OF_PATCHES(depth)),
          integer("model.mlp_width", "hidden width; where only width is given it keeps the preset's ratio",
                  {1, 1 << 22}, TESSERA_OF_PATCHES(mlp_width)),
          shorthand("model.mlp_ratio", Type::kNumber, "mlp_width as a multiple of width", {0, 1024, true}),
          number("model.layer_scale", "initial value of LayerScale; a ViT with 0 has none", {0, 1e6},
                 TESSERA_OF_PATCHES(layer_scale)),
          number("model.drop_path", "rate of the last block; earlier ones of a ViT linearly less", kRate,
                 TESSERA_OF_PATCHES(drop_path))});
}

void add_vit(std::vector<Option>& table) {
  using arch::Head, arch::Pool, arch::PositionEmbedding;
  append(table, {arch::VitConfig::kFamily},
         {integer("model.heads", "attention heads, divide width", {1, 1 << 16}, TESSERA_VIT(heads)),
          integer("model.registers", "register tokens", {0, 1 << 16}, TESSERA_VIT(registers)),
          flag("model.class_token", "a token that pool = \"cls\" reads", TESSERA_VIT(class_token)),
          flag("model.distillation_token", "a second one, whose own head learns from a teacher (DeiT)",
               TESSERA_VIT(distillation_token)),
          choice<Pool>("model.pool", "class token, average of the patches, or attention pool",
                       {{"cls", Pool::kClassToken}, {"gap", Pool::kAverage}, {"map", Pool::kAttention}},
                       TESSERA_VIT(pool)),
          flag("model.norm_before_pool",
               "pool = \"gap\": every token is normed, then they are averaged (big_vision); else the reverse",
               TESSERA_VIT(norm_before_pool)),
          choice<PositionEmbedding>(
              "model.position_embedding", "trained, or fixed sines and cosines",
              {{"learned", PositionEmbedding::kLearned}, {"sincos2d", PositionEmbedding::kSinCos2d}},
              TESSERA_VIT(position_embedding)),
          choice<Head>("model.head", "one layer, or two with tanh between",
                       {{"linear", Head::kLinear}, {"tanh", Head::kTanh}}, TESSERA_VIT(head)),
          flag("model.qk_norm", "LayerNorm on queries and keys", TESSERA_VIT(qk_norm)),
          number("model.dropout", "rate after positions, projections and MLPs", kRate, TESSERA_VIT(dropout)),
          number("model.norm_epsilon", "of every LayerNorm", {0, 1, true}, TESSERA_VIT(norm_epsilon)),
          number("model.head_bias", "initial value of the last layer's bias; sigmoid losses like about -7",
                 {-1000, 1000}, TESSERA_VIT(head_bias)),
          flag("model.head_zero_init", "the last layer's weights start at 0 (big_vision)",
               TESSERA_VIT(head_zero_init)),
          choice<arch::InitialValues>(
              "model.init", "initial values of the parameters, as timm's or as big_vision's",
              {{"timm", arch::InitialValues::kTimm}, {"big_vision", arch::InitialValues::kBigVision}},
              TESSERA_VIT(initial_values))});
}

void add_resnet(std::vector<Option>& table) {
  append(table, {arch::ResNetConfig::kFamily},
         {choice<bool>("model.block", "3x3, 3x3; or 1x1, 3x3, 1x1 convolutions",
                       {{"basic", false}, {"bottleneck", true}}, TESSERA_RESNET(bottleneck)),
          counts("model.blocks", "blocks of each stage; each but the first halves the image", {1, 1024},
                 TESSERA_RESNET(blocks)),
          integer("model.base_width", "channels of the stem; each stage has twice those before", {1, 1 << 16},
                  TESSERA_RESNET(base_width)),
          flag("model.zero_init_residual", "the last BatchNorm of a block starts at 0",
               TESSERA_RESNET(zero_init_residual)),
          flag("model.batch_norm_sync", "statistics over the samples of all ranks, not of each",
               TESSERA_RESNET(batch_norm_sync)),
          number("model.batch_norm_momentum", "weight of a batch in the running statistics", {0, 1, true},
                 TESSERA_RESNET(batch_norm_momentum)),
          number("model.batch_norm_epsilon", "added to every variance", {0, 1, true},
                 TESSERA_RESNET(batch_norm_epsilon))});
}

#undef TESSERA_VIT
#undef TESSERA_OF_PATCHES
#undef TESSERA_RESNET

}  // namespace

void add_model_options(std::vector<Option>& table) {
  const std::vector<Option> rows = {
      family(),
      shorthand("model.preset", Type::kText,
                "named size that sets all of [model]; other keys then win (\"S/16\", \"resnet50\", "
                "\"resmlp_24_224\")"),
      integer("model.image_size", "pixels, square", {1, 1 << 16}, TESSERA_FIELD(model.image_size())),
      integer("model.channels", "1: grey, 3: RGB", {1, 3}, TESSERA_FIELD(model.channels())),
      integer("model.classes", "outputs", {1, 1 << 27}, TESSERA_FIELD(model.classes())),
  };
  table.insert(table.end(), rows.begin(), rows.end());
  add_of_patches(table);
  add_vit(table);
  add_resnet(table);
}

}  // namespace tessera::recipe
