// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/hugging_face_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::weights {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kNearest = 0, kBilinear = 2, kBicubic = 3;  // PIL's numbers
constexpr double kMaxSize = 1 << 28;

/// The object of a file, and what may be asked of it.
class Config {
 public:
  Config(const std::string& text, std::string where) : where_(std::move(where)) {
    root_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!root_.is_object()) wrong("a JSON object", root_.is_discarded() ? "no JSON" : "another value");
  }
  [[noreturn]] void wrong(const std::string& expected, const std::string& found) const {
    user_error("weights.config", expected, ": found ", found, " (", where_, ')');
  }
  const json* find(const char* key) const {
    const auto at = root_.find(key);
    return at == root_.end() || at->is_null() ? nullptr : &*at;
  }
  double number(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) wrong(concat(key, " as a number"), value->type_name());
    return value->get<double>();
  }
  int64_t size(const char* key, int64_t fallback) const {
    return whole(key, number(key, static_cast<double>(fallback)));
  }
  int64_t whole(const char* key, double value) const {
    if (!(value >= 1 && value <= kMaxSize && value == std::floor(value)))
      wrong(concat(key, " as a whole number above 0"), concat(value));
    return static_cast<int64_t>(value);
  }
  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong(concat(key, " as true or false"), value->type_name());
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) wrong(concat(key, " as text"), value->type_name());
    return value->get<std::string>();
  }
  std::vector<float> floats(const char* key, const std::vector<float>& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    std::vector<float> numbers;
    if (value->is_array()) {
      for (const auto& each : *value) {
        if (each.is_number()) numbers.push_back(each.get<float>());
      }
    }
    if (numbers.empty() || numbers.size() != value->size() || numbers.size() > 3)
      wrong(concat(key, " as a list of one number a channel"), value->type_name());
    return numbers;
  }
  /// `key` as a side in pixels: a number, {height, width} alike, or {shortest_edge}.
  std::optional<int64_t> side(const char* key, bool& shortest) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return whole(key, value->get<double>());
    if (value->is_object()) {
      const auto edge = value->find("shortest_edge"), height = value->find("height"),
                 width = value->find("width");
      shortest = edge != value->end();
      if (shortest && edge->is_number()) return whole(key, edge->get<double>());
      if (height != value->end() && width != value->end() && height->is_number() && *height == *width)
        return whole(key, height->get<double>());
    }
    wrong(concat(key, " as the side of a square"),
          value->dump(-1, ' ', true, json::error_handler_t::replace));
  }

 private:
  std::string where_;
  json root_;
};

std::vector<std::string> class_names(const Config& config) {
  std::vector<std::string> names;
  const json* labels = config.find("id2label");
  if (labels == nullptr) return names;
  if (!labels->is_object()) config.wrong("id2label as an object", labels->type_name());
  names.resize(labels->size());
  for (const auto& [key, name] : labels->items()) {
    const auto index = parse_number<int64_t>(key);
    if (!index || *index < 0 || *index >= static_cast<int64_t>(names.size()) || !name.is_string()) {
      config.wrong("id2label from 0 on, each with a text", concat('"', escape(key), '"'));
    }
    names[static_cast<size_t>(*index)] = name.get<std::string>();
  }
  return names;
}

}  // namespace

void read_hugging_face_config(const std::string& json, const std::string& where, Description& description) {
  const Config config(json, where);
  const std::string type = config.text("model_type", "vit");
  if (type != "vit") {
    const std::string advice = type == "deit"     ? ", whose distillation token Tessera's ViT has not"
                               : type == "dinov2" ? ": take the .pth of DINOv2"
                                                  : "";
    config.wrong("model_type \"vit\"", concat('"', escape(type), '"', advice));
  }
  const std::string activation = config.text("hidden_act", "gelu");
  if (activation != "gelu") config.wrong("hidden_act \"gelu\"", concat('"', escape(activation), '"'));
  if (!config.flag("qkv_bias", true)) config.wrong("qkv_bias true", "false");
  arch::VitConfig& c = description.config;
  c.width = config.size("hidden_size", 768);
  c.depth = config.size("num_hidden_layers", 12);
  c.heads = config.size("num_attention_heads", 12);
  c.mlp_width = config.size("intermediate_size", 3072);
  c.image_size = config.size("image_size", 224);
  c.patch_size = config.size("patch_size", 16);
  c.channels = config.size("num_channels", 3);
  c.norm_epsilon = config.number("layer_norm_eps", kHuggingFaceEpsilon);
  description.classes = class_names(config);
}

void read_preprocessor_config(const std::string& json, const std::string& where,
                              data::TransformOptions& pixels) {
  const Config config(json, where);
  const bool normalise = config.flag("do_normalize", true);
  pixels.mean = normalise ? config.floats("image_mean", {0.5F, 0.5F, 0.5F}) : std::vector<float>(3, 0.0F);
  pixels.std = normalise ? config.floats("image_std", {0.5F, 0.5F, 0.5F}) : std::vector<float>(3, 1.0F);
  if (!config.flag("do_rescale", true)) config.wrong("do_rescale true", "false");
  if (const double factor = config.number("rescale_factor", 1.0 / 255); std::abs(factor * 255 - 1) > 1e-3) {
    config.wrong("rescale_factor 1/255", concat(factor));
  }
  const double resample = config.number("resample", kBilinear);
  if (resample != kBilinear && resample != kBicubic) {
    config.wrong(concat("resample ", kBilinear, " (bilinear) or ", kBicubic, " (bicubic)"),
                 concat(resample, resample == kNearest ? " (nearest)" : ""));
  }
  pixels.bicubic = resample == kBicubic;
  bool shortest = false, ignored = false;
  const auto size = config.side("size", shortest);
  pixels.eval_crop = data::EvalCrop::kSquash;
  if (!config.flag("do_center_crop", false)) return;
  const auto crop = config.side("crop_size", ignored);
  if (!size || !crop || *crop > *size) config.wrong("crop_size of at most size", "another");
  pixels.eval_crop = data::EvalCrop::kCenter;
  pixels.eval_crop_ratio = static_cast<double>(*crop) / static_cast<double>(*size);
}

bool read_timm_config(const std::string& text, const std::string& where, data::TransformOptions& pixels) {
  const Config file(text, where);
  const json* inner = file.find("pretrained_cfg");
  if (inner == nullptr) return false;
  const Config config(inner->dump(-1, ' ', true, json::error_handler_t::replace), where);
  pixels.mean = config.floats("mean", pixels.mean);
  pixels.std = config.floats("std", pixels.std);
  pixels.bicubic = config.text("interpolation", "bicubic") == "bicubic";
  const double ratio = config.number("crop_pct", 0.875);
  if (!(ratio > 0 && ratio <= 1)) config.wrong("crop_pct above 0 and at most 1", concat(ratio));
  pixels.eval_crop = data::EvalCrop::kCenter;
  pixels.eval_crop_ratio = ratio;
  return true;
}

std::string hugging_face_config(const arch::VitConfig& c, const std::vector<std::string>& classes) {
  ordered_json ids = ordered_json::object(), labels = ordered_json::object();
  for (int64_t i = 0; i < c.classes; ++i) {
    const bool known = i < static_cast<int64_t>(classes.size());
    const std::string name = known ? classes[static_cast<size_t>(i)] : concat("LABEL_", i);
    ids[std::to_string(i)] = name;
    labels[name] = i;
  }
  const ordered_json root = {{"architectures", {"ViTForImageClassification"}},
                             {"model_type", "vit"},
                             {"hidden_size", c.width},
                             {"num_hidden_layers", c.depth},
                             {"num_attention_heads", c.heads},
                             {"intermediate_size", c.mlp_width},
                             {"hidden_act", "gelu"},
                             {"hidden_dropout_prob", c.dropout},
                             {"attention_probs_dropout_prob", 0.0},
                             {"initializer_range", 0.02},
                             {"layer_norm_eps", c.norm_epsilon},
                             {"image_size", c.image_size},
                             {"patch_size", c.patch_size},
                             {"num_channels", c.channels},
                             {"qkv_bias", true},
                             {"id2label", ids},
                             {"label2id", labels},
                             {"torch_dtype", "float32"}};
  return json_text(root, 2) + "\n";
}

std::string preprocessor_config(const data::TransformOptions& pixels, int64_t image_size) {
  const bool crop = pixels.eval_crop == data::EvalCrop::kCenter;
  ordered_json root = {{"image_processor_type", crop ? "BitImageProcessor" : "ViTImageProcessor"},
                       {"do_resize", true},
                       {"resample", pixels.bicubic ? kBicubic : kBilinear},
                       {"do_rescale", true},
                       {"rescale_factor", 1.0 / 255},
                       {"do_normalize", true},
                       {"image_mean", pixels.mean},
                       {"image_std", pixels.std}};
  if (crop) {
    const auto shorter = std::llround(static_cast<double>(image_size) / pixels.eval_crop_ratio);
    root["size"] = {{"shortest_edge", shorter}};
    root["do_center_crop"] = true;
    root["crop_size"] = {{"height", image_size}, {"width", image_size}};
  } else {
    root["size"] = {{"height", image_size}, {"width", image_size}};
  }
  return root.dump(2) + "\n";
}

}  // namespace tessera::weights
