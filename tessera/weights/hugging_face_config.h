// SPDX-License-Identifier: Apache-2.0
// config.json and preprocessor_config.json of transformers' ViT, read and written; timm's config.json. Pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "tessera/weights/family.h"

namespace tessera::weights {

inline constexpr double kHuggingFaceEpsilon = 1e-12;  // of ViTConfig where layer_norm_eps is not given

/// Sizes, norm_epsilon and class names; what is not given has ViTConfig's default. Errors: UserError that
/// names `where`: no JSON, another model_type (DeiT, DINOv2, ... named), an activation other than exact GELU,
/// no biases of queries, keys and values, a value of another kind or out of range.
void read_hugging_face_config(const std::string& json, const std::string& where, Description& description);

/// Mean, std, interpolation and crop. Errors: UserError that names `where`.
void read_preprocessor_config(const std::string& json, const std::string& where,
                              data::TransformOptions& pixels);

/// timm's config.json of the hub: mean, std, interpolation and crop of its pretrained_cfg. False, and nothing
/// set, where there is none. Errors: UserError that names `where`.
bool read_timm_config(const std::string& json, const std::string& where, data::TransformOptions& pixels);

/// What transformers' from_pretrained reads. `classes`: names in label order, may be empty or fewer.
std::string hugging_face_config(const arch::VitConfig& config, const std::vector<std::string>& classes);
std::string preprocessor_config(const data::TransformOptions& pixels, int64_t image_size);

}  // namespace tessera::weights
