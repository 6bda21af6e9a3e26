// SPDX-License-Identifier: Apache-2.0
// Every field that configurations of timm and transformers have, and what becomes of it here. One table: the
// readers are checked against it, and docs/weights.md lists it. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::weights {

enum class ConfigFile {
  kHuggingFace,     // config.json of transformers' ViT and DeiT
  kPreprocessor,    // preprocessor_config.json of transformers
  kTimm,            // config.json of timm
  kTimmPretrained,  // its pretrained_cfg
  kTimmModel        // its model_args
};

/// "config.json of transformers", ...
std::string to_string(ConfigFile file);

enum class Treatment {
  kHonoured,    // the reader of the file takes its value
  kTensors,     // the shapes and names of the tensors say the same; a contradiction is an error
  kOnly,        // values other than ConfigField::only (or null) are an error
  kNoInfluence  // changes no result of inference
};

struct ConfigField {
  ConfigFile file;
  std::string_view name;
  Treatment treatment;
  std::string_view only = {};  // accepted values as JSON, separated by '|'; empty: null only
};

std::span<const ConfigField> config_fields();

/// Compares the fields of the JSON object `text` with the table. Returns the names of fields that the table
/// does not have. Errors: UserError that names `where`, field, value and what is accepted.
std::vector<std::string> check_fields(ConfigFile file, const std::string& text, const std::string& where);

/// What timm's name of an architecture says and neither tensors nor other fields do.
struct TimmArchitecture {
  bool known = false;
  int64_t heads = 0;              // unless model_args says others; 0: not known
  std::string_view refused = {};  // why Tessera's ViT cannot compute it; empty: it can
};
/// `name` may have a tag: "vit_base_patch16_224.augreg_in1k".
TimmArchitecture timm_architecture(std::string_view name);
/// The names of all known architectures.
std::vector<std::string_view> timm_architectures();

}  // namespace tessera::weights
