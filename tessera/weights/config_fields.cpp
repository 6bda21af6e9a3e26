// SPDX-License-Identifier: Apache-2.0
// Sources of the names: transformers 5.23 (ViTConfig, DeiTConfig, PreTrainedConfig, ImagesKwargs) and timm
// 1.0.31 (PretrainedCfg, VisionTransformer.__init__); tests/weights/config_fields.json holds their lists.
#include "tessera/weights/config_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::weights {
namespace {

using nlohmann::json;

constexpr auto kHf = ConfigFile::kHuggingFace, kPre = ConfigFile::kPreprocessor, kTimm = ConfigFile::kTimm,
               kCfg = ConfigFile::kTimmPretrained, kArgs = ConfigFile::kTimmModel;
using enum Treatment;

constexpr ConfigField kFields[] = {
    {kHf, "model_type", kHonoured},
    {kHf, "hidden_size", kHonoured},
    {kHf, "num_hidden_layers", kHonoured},
    {kHf, "num_attention_heads", kHonoured},
    {kHf, "intermediate_size", kHonoured},
    {kHf, "image_size", kHonoured},
    {kHf, "patch_size", kHonoured},
    {kHf, "num_channels", kHonoured},
    {kHf, "layer_norm_eps", kHonoured},
    {kHf, "id2label", kHonoured},
    {kHf, "num_labels", kTensors},
    {kHf, "hidden_act", kOnly, R"("gelu"|"gelu_python")"},
    {kHf, "qkv_bias", kOnly, "true"},
    {kHf, "problem_type", kOnly, R"("single_label_classification")"},
    {kHf, "pruned_heads", kOnly, "{}"},
    {kHf, "quantization_config", kOnly},
    {kHf, "is_encoder_decoder", kOnly, "false"},
    {kHf, "is_decoder", kOnly, "false"},
    {kHf, "add_cross_attention", kOnly, "false"},
    {kHf, "architectures", kNoInfluence},
    {kHf, "label2id", kNoInfluence},
    {kHf, "hidden_dropout_prob", kNoInfluence},
    {kHf, "attention_probs_dropout_prob", kNoInfluence},
    {kHf, "initializer_range", kNoInfluence},
    {kHf, "encoder_stride", kNoInfluence},
    {kHf, "pooler_output_size", kNoInfluence},
    {kHf, "pooler_act", kNoInfluence},
    {kHf, "chunk_size_feed_forward", kNoInfluence},
    {kHf, "output_hidden_states", kNoInfluence},
    {kHf, "output_attentions", kNoInfluence},
    {kHf, "return_dict", kNoInfluence},
    {kHf, "use_return_dict", kNoInfluence},
    {kHf, "use_cache", kNoInfluence},
    {kHf, "torchscript", kNoInfluence},
    {kHf, "tie_word_embeddings", kNoInfluence},
    {kHf, "dtype", kNoInfluence},
    {kHf, "torch_dtype", kNoInfluence},
    {kHf, "attn_implementation", kNoInfluence},
    {kHf, "_attn_implementation_autoset", kNoInfluence},
    {kHf, "transformers_version", kNoInfluence},
    {kHf, "_name_or_path", kNoInfluence},
    {kHf, "name_or_path", kNoInfluence},
    {kHf, "_commit_hash", kNoInfluence},
    {kHf, "finetuning_task", kNoInfluence},
    {kHf, "task_specific_params", kNoInfluence},

    {kPre, "image_processor_type", kHonoured},
    {kPre, "feature_extractor_type", kHonoured},
    {kPre, "size", kHonoured},
    {kPre, "default_to_square", kHonoured},
    {kPre, "do_center_crop", kHonoured},
    {kPre, "crop_size", kHonoured},
    {kPre, "resample", kHonoured},
    {kPre, "do_rescale", kHonoured},
    {kPre, "rescale_factor", kHonoured},
    {kPre, "do_normalize", kHonoured},
    {kPre, "image_mean", kHonoured},
    {kPre, "image_std", kHonoured},
    {kPre, "do_resize", kOnly, "true"},
    {kPre, "do_pad", kOnly, "false"},
    {kPre, "crop_pct", kOnly},
    {kPre, "rescale_offset", kOnly, "false"},
    {kPre, "include_top", kOnly, "false"},
    {kPre, "do_flip_channel_order", kOnly, "false"},
    {kPre, "do_convert_rgb", kNoInfluence},
    {kPre, "do_reduce_labels", kNoInfluence},
    {kPre, "pad_size", kNoInfluence},
    {kPre, "size_divisor", kNoInfluence},
    {kPre, "data_format", kNoInfluence},
    {kPre, "input_data_format", kNoInfluence},
    {kPre, "device", kNoInfluence},
    {kPre, "return_tensors", kNoInfluence},
    {kPre, "disable_grouping", kNoInfluence},
    {kPre, "image_seq_length", kNoInfluence},
    {kPre, "processor_class", kNoInfluence},
    {kPre, "_processor_class", kNoInfluence},
    {kPre, "_valid_processor_keys", kNoInfluence},

    {kTimm, "architecture", kHonoured},
    {kTimm, "global_pool", kHonoured},
    {kTimm, "pretrained_cfg", kHonoured},
    {kTimm, "model_args", kHonoured},
    {kTimm, "label_names", kHonoured},
    {kTimm, "num_classes", kTensors},
    {kTimm, "num_features", kNoInfluence},
    {kTimm, "label_descriptions", kNoInfluence},
    // Of transformers' TimmWrapper, which writes timm's fields among its own.
    {kTimm, "model_type", kOnly, R"("timm_wrapper"|"timm")"},
    {kTimm, "do_pooling", kOnly, "true"},
    {kTimm, "problem_type", kOnly, R"("single_label_classification")"},
    {kTimm, "quantization_config", kOnly},
    {kTimm, "id2label", kHonoured},
    {kTimm, "architectures", kNoInfluence},
    {kTimm, "initializer_range", kNoInfluence},
    {kTimm, "label2id", kNoInfluence},
    {kTimm, "dtype", kNoInfluence},
    {kTimm, "torch_dtype", kNoInfluence},
    {kTimm, "transformers_version", kNoInfluence},

    {kCfg, "input_size", kHonoured},
    {kCfg, "interpolation", kHonoured},
    {kCfg, "crop_pct", kHonoured},
    {kCfg, "crop_mode", kHonoured},
    {kCfg, "mean", kHonoured},
    {kCfg, "std", kHonoured},
    {kCfg, "label_names", kHonoured},
    {kCfg, "labels", kHonoured},
    {kCfg, "architecture", kHonoured},
    {kCfg, "num_classes", kTensors},
    {kCfg, "label_offset", kOnly, "0"},
    {kCfg, "custom_load", kNoInfluence},
    {kCfg, "test_input_size", kNoInfluence},
    {kCfg, "test_crop_pct", kNoInfluence},
    {kCfg, "min_input_size", kNoInfluence},
    {kCfg, "fixed_input_size", kNoInfluence},
    {kCfg, "pool_size", kNoInfluence},
    {kCfg, "test_pool_size", kNoInfluence},
    {kCfg, "first_conv", kNoInfluence},
    {kCfg, "classifier", kNoInfluence},
    {kCfg, "num_features", kNoInfluence},
    {kCfg, "label_descriptions", kNoInfluence},
    {kCfg, "url", kNoInfluence},
    {kCfg, "file", kNoInfluence},
    {kCfg, "state_dict", kNoInfluence},
    {kCfg, "hf_hub_id", kNoInfluence},
    {kCfg, "hf_hub_filename", kNoInfluence},
    {kCfg, "source", kNoInfluence},
    {kCfg, "tag", kNoInfluence},
    {kCfg, "license", kNoInfluence},
    {kCfg, "description", kNoInfluence},
    {kCfg, "origin_url", kNoInfluence},
    {kCfg, "paper_name", kNoInfluence},
    {kCfg, "paper_ids", kNoInfluence},
    {kCfg, "notes", kNoInfluence},

    {kArgs, "global_pool", kHonoured},
    {kArgs, "num_heads", kHonoured},
    {kArgs, "fc_norm", kHonoured},
    {kArgs, "img_size", kTensors},
    {kArgs, "num_classes", kTensors},
    {kArgs, "patch_size", kTensors},
    {kArgs, "in_chans", kTensors},
    {kArgs, "embed_dim", kTensors},
    {kArgs, "depth", kTensors},
    {kArgs, "mlp_ratio", kTensors},
    {kArgs, "init_values", kTensors},
    {kArgs, "class_token", kTensors},
    {kArgs, "reg_tokens", kTensors},
    {kArgs, "no_embed_class", kTensors},
    {kArgs, "qk_norm", kTensors},
    {kArgs, "qkv_bias", kOnly, "true"},
    {kArgs, "proj_bias", kOnly, "true"},
    {kArgs, "scale_attn_norm", kOnly, "false"},
    {kArgs, "scale_mlp_norm", kOnly, "false"},
    {kArgs, "pos_embed", kOnly, R"("learn")"},
    {kArgs, "pre_norm", kOnly, "false"},
    {kArgs, "final_norm", kOnly, "true"},
    {kArgs, "pool_include_prefix", kOnly, "false"},
    {kArgs, "act_layer", kOnly, R"("gelu")"},
    {kArgs, "norm_layer", kOnly, R"("layernorm")"},
    {kArgs, "embed_norm_layer", kOnly},
    {kArgs, "embed_layer", kOnly},
    {kArgs, "block_fn", kOnly},
    {kArgs, "mlp_layer", kOnly},
    {kArgs, "attn_layer", kOnly},
    {kArgs, "dynamic_img_size", kNoInfluence},
    {kArgs, "dynamic_img_pad", kNoInfluence},
    {kArgs, "drop_rate", kNoInfluence},
    {kArgs, "pos_drop_rate", kNoInfluence},
    {kArgs, "patch_drop_rate", kNoInfluence},
    {kArgs, "proj_drop_rate", kNoInfluence},
    {kArgs, "attn_drop_rate", kNoInfluence},
    {kArgs, "drop_path_rate", kNoInfluence},
    {kArgs, "weight_init", kNoInfluence},
    {kArgs, "fix_init", kNoInfluence},
    {kArgs, "device", kNoInfluence},
    {kArgs, "dtype", kNoInfluence},
};

bool is_accepted(const json& value, std::string_view only) {
  if (value.is_null()) return true;
  while (!only.empty()) {
    if (value == json::parse(take_until(only, "|"))) return true;
  }
  return false;
}

std::string choices(std::string_view only) {
  std::vector<std::string> all;
  while (!only.empty()) all.emplace_back(take_until(only, "|"));
  return all.empty() ? "null" : join(all, " or ");
}

}  // namespace

std::string to_string(ConfigFile file) {
  switch (file) {
    case ConfigFile::kHuggingFace:
      return "config.json of transformers";
    case ConfigFile::kPreprocessor:
      return "preprocessor_config.json";
    case ConfigFile::kTimm:
      return "config.json of timm";
    case ConfigFile::kTimmPretrained:
      return "pretrained_cfg";
    case ConfigFile::kTimmModel:
      return "model_args";
  }
  TESSERA_CHECK(false, static_cast<int>(file));
  return {};
}

std::span<const ConfigField> config_fields() { return kFields; }

std::vector<std::string> check_fields(ConfigFile file, const std::string& text, const std::string& where) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> unknown;
  if (!object.is_object()) return unknown;
  for (const auto& item : object.items()) {
    const std::string& name = item.key();  // clang 14 captures no structured binding
    const json& value = item.value();
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields), [&](const ConfigField& each) {
      return each.file == file && each.name == name;
    });
    if (field == std::end(kFields)) {
      unknown.push_back(name);
    } else if (field->treatment == kOnly && !is_accepted(value, field->only)) {
      user_error({.where = "weights.config",
                  .problem = concat(where, ": ", name, " is ",
                                    value.dump(-1, ' ', true, json::error_handler_t::replace)),
                  .expected = choices(field->only),
                  .hint = "Tessera's ViT would compute something else"});
    }
  }
  return unknown;
}

}  // namespace tessera::weights
