// SPDX-License-Identifier: Apache-2.0
// config.json and preprocessor_config.json of transformers' ViT, read and written; timm's config.json. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/weights/family.h"

namespace tessera::weights {

inline constexpr double kHuggingFaceEpsilon = 1e-12;  // of ViTConfig where layer_norm_eps is not given

/// model_type of a config.json; "": it has none, or is no JSON object.
std::string hugging_face_model_type(const std::string& json);
/// Errors: UserError that names `where` and the type, where it is neither "vit" nor "deit".
void check_hugging_face_model_type(const std::string& type, const std::string& where);

/// Sizes, norm_epsilon and class names; what is not given has ViTConfig's default. Every other field is
/// treated as config_fields.h says. Errors: UserError that names `where`, field and value: no JSON, another
/// model_type, a field that Tessera cannot honour, a value of another kind or out of range.
void read_hugging_face_config(const std::string& json, const std::string& where, Description& description);

/// Mean, std, interpolation and crop, of a model whose config.image_size is known. A rescale_factor other
/// than 1/255 becomes part of mean and std. Errors: as above.
void read_preprocessor_config(const std::string& json, const std::string& where, Description& description);

/// What timm's config.json says of the model and the tensors do not.
struct TimmConfig {
  std::string architecture;                // "": not said
  std::optional<std::string> global_pool;  // "token", "avg", "map", ...
  std::optional<bool> fc_norm;
  std::optional<int64_t> input_side;  // pixels
  int64_t heads = 0;                  // 0: not said
  std::optional<int64_t> classes;     // outputs of the head
};

/// timm's config.json of the hub, also as transformers' TimmWrapper writes it: mean, std, interpolation, crop
/// and class names go to `description`. Nothing, and nothing set, where the file is not timm's. Errors: as
/// above.
std::optional<TimmConfig> read_timm_config(const std::string& json, const std::string& where,
                                           Description& description);

/// What transformers' from_pretrained reads. `classes`: names in label order, may be empty or fewer.
std::string hugging_face_config(const arch::VitConfig& config, const std::vector<std::string>& classes);
std::string preprocessor_config(const data::TransformOptions& pixels, int64_t image_size);

}  // namespace tessera::weights
