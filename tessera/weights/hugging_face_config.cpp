// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/hugging_face_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/weights/config_fields.h"

namespace tessera::weights {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kWhere = "weights.config";
constexpr int kNearest = 0, kBilinear = 2, kBicubic = 3;  // PIL's numbers
constexpr double kMaxSize = 1 << 28;

/// The object of a file, and what may be asked of it.
class Config {
 public:
  Config(const std::string& text, std::string where) : where_(std::move(where)) {
    root_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!root_.is_object()) {
      user_error({.where = kWhere,
                  .problem = concat(where_, root_.is_discarded() ? " is no JSON" : " holds no JSON object"),
                  .expected = "an object {\"name\": value, ...}",
                  .hint = ""});
    }
  }
  /// `name` is `value`, as JSON or in words.
  [[noreturn]] void wrong(std::string_view name, const std::string& value, const std::string& expected,
                          const std::string& hint = "") const {
    user_error({.where = kWhere,
                .problem = concat(where_, ": ", name, " is ", value),
                .expected = expected,
                .hint = hint});
  }
  const json* find(const char* key) const {
    const auto at = root_.find(key);
    return at == root_.end() || at->is_null() ? nullptr : &*at;
  }
  bool has(const char* key) const { return find(key) != nullptr; }
  double number(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) wrong(key, text_of(*value), "a number");
    return value->get<double>();
  }
  int64_t size(const char* key, int64_t fallback) const {
    return whole(key, number(key, static_cast<double>(fallback)));
  }
  int64_t whole(const char* key, double value) const {
    if (!(value >= 1 && value <= kMaxSize && value == std::floor(value)))
      wrong(key, concat(value), "a whole number above 0");
    return static_cast<int64_t>(value);
  }
  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) wrong(key, text_of(*value), "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) wrong(key, text_of(*value), "text");
    return value->get<std::string>();
  }
  /// One number a channel, or one for all of them.
  std::vector<float> floats(const char* key, const std::vector<float>& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_number()) return {value->get<float>()};
    std::vector<float> numbers;
    if (value->is_array()) {
      for (const auto& each : *value) {
        if (each.is_number()) numbers.push_back(each.get<float>());
      }
    }
    if (numbers.empty() || numbers.size() != value->size() || numbers.size() > 3)
      wrong(key, text_of(*value), "a list of one number a channel");
    return numbers;
  }
  /// The side of a square in pixels: a number or [height, width] alike.
  int64_t square(const char* key, int64_t fallback) const {
    const json* value = find(key);
    if (value == nullptr || value->is_number()) return size(key, fallback);
    if (value->is_array() && value->size() == 2 && value->front() == value->back() &&
        value->front().is_number()) {
      return whole(key, value->front().get<double>());
    }
    wrong(key, text_of(*value), "the side of a square in pixels");
  }
  /// A square as processors give it: a number (`shorter` stays as it is), {height, width} alike, or
  /// {shortest_edge}. Nothing where there is none.
  std::optional<int64_t> side(const char* key, bool& shorter) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) return square(key, 0);
    const auto edge = value->find("shortest_edge"), height = value->find("height"),
               width = value->find("width");
    shorter = edge != value->end();
    if (shorter && value->size() == 1 && edge->is_number()) return whole(key, edge->get<double>());
    if (!shorter && value->size() == 2 && height != value->end() && width != value->end() &&
        height->is_number() && *height == *width)
      return whole(key, height->get<double>());
    wrong(key, text_of(*value), "{\"height\": N, \"width\": N} or {\"shortest_edge\": N}");
  }
  static std::string text_of(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    constexpr size_t kLongest = 80;
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  }

 private:
  std::string where_;
  json root_;
};

std::vector<std::string> class_names(const Config& config) {
  std::vector<std::string> names;
  const json* labels = config.find("id2label");
  if (labels == nullptr) return names;
  if (!labels->is_object()) config.wrong("id2label", Config::text_of(*labels), "an object");
  names.resize(labels->size());
  for (const auto& [key, name] : labels->items()) {
    const auto index = parse_number<int64_t>(key);
    if (!index || *index < 0 || *index >= static_cast<int64_t>(names.size()) || !name.is_string()) {
      config.wrong(concat("id2label[\"", escape(key), "\"]"), Config::text_of(name),
                   concat("labels 0 to ", names.size() - 1, ", each with a text"));
    }
    names[static_cast<size_t>(*index)] = name.get<std::string>();
  }
  return names;
}

/// timm's: a list of names in the order of the labels.
std::vector<std::string> label_names(const Config& config, const char* key) {
  std::vector<std::string> names;
  const json* labels = config.find(key);
  if (labels == nullptr) return names;
  for (const auto& name : *labels) {
    if (!labels->is_array() || !name.is_string())
      config.wrong(key, Config::text_of(*labels), "a list of texts");
    names.push_back(name.get<std::string>());
  }
  return names;
}

void note_unknown(std::vector<std::string> unknown, const std::string& where,
                  std::vector<std::string>& notes) {
  if (unknown.empty()) return;
  for (auto& name : unknown) name = escape(name);
  notes.push_back(concat(where, ": fields that Tessera does not know and ignores: ", join(unknown, ", ")));
}

/// What a processor of transformers does where its file leaves a field out.
struct Processor {
  std::string_view name;
  bool bicubic, center_crop, shorter;  // shorter: `size` is that of the shorter side
  int64_t size;
  bool clip_pixels;  // OpenAI's mean and std, else 0.5
};
constexpr std::array<Processor, 4> kProcessors = {{{"ViT", false, false, false, 224, false},
                                                   {"DeiT", true, true, false, 256, false},
                                                   {"Bit", true, true, true, 224, true},
                                                   {"CLIP", true, true, true, 224, true}}};

/// By image_processor_type or, in older files, feature_extractor_type: "ViTImageProcessorFast", ...
const Processor& processor_of(const Config& config) {
  const char* key = config.has("image_processor_type") ? "image_processor_type" : "feature_extractor_type";
  const std::string type = config.text(key, "ViTImageProcessor");
  for (const Processor& processor : kProcessors) {
    for (const char* end :
         {"ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor"}) {
      if (type == concat(processor.name, end)) return processor;
    }
  }
  config.wrong(key, concat('"', escape(type), '"'), "a ViT, DeiT, Bit or CLIP image processor",
               "other processors make other pixels; remove the file to state them by --set data.*");
}

/// What timm's names of crops are here.
void read_timm_crop(const Config& config, data::TransformOptions& pixels) {
  const std::string interpolation = config.text("interpolation", "bicubic");
  if (interpolation != "bicubic" && interpolation != "bilinear")
    config.wrong("interpolation", concat('"', escape(interpolation), '"'), "\"bicubic\" or \"bilinear\"");
  pixels.bicubic = interpolation == "bicubic";
  const double ratio = config.number("crop_pct", 0.875);
  if (!(ratio > 0 && ratio <= 1)) config.wrong("crop_pct", concat(ratio), "above 0 and at most 1");
  const std::string mode = config.text("crop_mode", "center");
  if (mode != "center" && mode != "squash") {
    config.wrong("crop_mode", concat('"', escape(mode), '"'), "\"center\" or \"squash\"",
                 mode == "border" ? "Tessera does not pad images" : "");
  }
  pixels.eval_crop = mode == "center" ? data::EvalCrop::kCenter : data::EvalCrop::kSquashCenter;
  pixels.eval_crop_ratio = ratio;
}

std::optional<int64_t> input_side(const Config& config) {
  const json* size = config.find("input_size");
  if (size == nullptr) return std::nullopt;
  if (!size->is_array() || size->size() != 3 || (*size)[1] != (*size)[2] || !(*size)[1].is_number())
    config.wrong("input_size", Config::text_of(*size), "[channels, N, N], a square");
  return config.whole("input_size", (*size)[1].get<double>());
}

std::string dump(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

}  // namespace

std::string hugging_face_model_type(const std::string& text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("model_type") || !root["model_type"].is_string()) return "";
  return root["model_type"].get<std::string>();
}

void check_hugging_face_model_type(const std::string& type, const std::string& where) {
  if (type == "vit" || type == "deit") return;
  user_error({.where = kWhere,
              .problem = concat(where, ": model_type is \"", escape(type), '"'),
              .expected = "\"vit\" or \"deit\"",
              .hint = type.starts_with("dinov2") ? "take the .pth of DINOv2"
                                                 : "Tessera has no such model of transformers"});
}

void read_hugging_face_config(const std::string& json, const std::string& where, Description& description) {
  const Config config(json, where);
  check_hugging_face_model_type(config.text("model_type", "vit"), where);
  note_unknown(check_fields(ConfigFile::kHuggingFace, json, where), where, description.notes);
  arch::VitConfig& c = description.config;
  c.width = config.size("hidden_size", 768);
  c.depth = config.size("num_hidden_layers", 12);
  c.heads = config.size("num_attention_heads", 12);
  c.mlp_width = config.size("intermediate_size", 3072);
  c.image_size = config.square("image_size", 224);
  c.patch_size = config.square("patch_size", 16);
  c.channels = config.size("num_channels", 3);
  c.norm_epsilon = config.number("layer_norm_eps", kHuggingFaceEpsilon);
  description.classes = class_names(config);
}

void read_preprocessor_config(const std::string& json, const std::string& where, Description& description) {
  const Config config(json, where);
  data::TransformOptions& pixels = description.pixels;
  note_unknown(check_fields(ConfigFile::kPreprocessor, json, where), where, description.notes);
  const Processor& usual = processor_of(config);

  // A pixel of 0 to 255 times `factor`, less mean, over std: as of a pixel of 0 to 1 with both over 255
  // factor.
  const double factor = config.flag("do_rescale", true) ? config.number("rescale_factor", 1.0 / 255) : 1.0;
  if (!(factor > 0 && factor <= 255)) config.wrong("rescale_factor", concat(factor), "a number above 0");
  const std::vector<float> usual_mean = usual.clip_pixels
                                            ? std::vector<float>{0.48145466F, 0.4578275F, 0.40821073F}
                                            : std::vector<float>(3, 0.5F);
  const std::vector<float> usual_std = usual.clip_pixels
                                           ? std::vector<float>{0.26862954F, 0.26130258F, 0.27577711F}
                                           : std::vector<float>(3, 0.5F);
  const bool normalise = config.flag("do_normalize", true);
  pixels.mean = normalise ? config.floats("image_mean", usual_mean) : std::vector<float>(3, 0.0F);
  pixels.std = normalise ? config.floats("image_std", usual_std) : std::vector<float>(3, 1.0F);
  if (const double scale = 255 * factor; std::abs(scale - 1) > 1e-9) {
    for (auto* numbers : {&pixels.mean, &pixels.std}) {
      for (float& number : *numbers) number = static_cast<float>(number / scale);
    }
  }

  const double resample = config.number("resample", usual.bicubic ? kBicubic : kBilinear);
  if (resample != kBilinear && resample != kBicubic) {
    config.wrong("resample", concat(resample, resample == kNearest ? " (nearest)" : ""),
                 concat(kBilinear, " (bilinear) or ", kBicubic, " (bicubic)"));
  }
  pixels.bicubic = resample == kBicubic;

  bool shorter = usual.shorter, ignored = false;
  if (config.has("default_to_square")) shorter = !config.flag("default_to_square", true);
  const int64_t size = config.side("size", shorter).value_or(usual.size);
  const int64_t image = description.config.image_size;
  if (!config.flag("do_center_crop", usual.center_crop)) {
    if (shorter) {
      config.wrong("size", concat("that of the shorter side, ", size), "{\"height\": N, \"width\": N}",
                   "without do_center_crop images would not be square");
    }
    if (size != image) config.wrong("size", concat(size), concat("image_size of the model, ", image));
    pixels.eval_crop = data::EvalCrop::kSquash;
    return;
  }
  const int64_t crop = config.side("crop_size", ignored).value_or(224);
  if (crop != image) config.wrong("crop_size", concat(crop), concat("image_size of the model, ", image));
  if (crop > size) config.wrong("crop_size", concat(crop), concat("at most size, ", size));
  pixels.eval_crop = shorter ? data::EvalCrop::kCenter : data::EvalCrop::kSquashCenter;
  pixels.eval_crop_ratio = static_cast<double>(crop) / static_cast<double>(size);
}

std::optional<TimmConfig> read_timm_config(const std::string& text, const std::string& where,
                                           Description& description) {
  const Config file(text, where);
  const json* inner = file.find("pretrained_cfg");
  if (inner == nullptr && !file.has("architecture")) return std::nullopt;
  // Older files hold pretrained_cfg's fields and the architecture side by side.
  const std::string pretrained = inner == nullptr ? text : dump(*inner);
  const Config config(pretrained, inner == nullptr ? where : where + ": pretrained_cfg");
  const auto unknown_outside = check_fields(ConfigFile::kTimm, text, where);
  auto unknown = check_fields(ConfigFile::kTimmPretrained, pretrained, where);
  if (inner != nullptr) {
    note_unknown(unknown_outside, where, description.notes);
  } else {  // the fields of both stand in one object
    std::erase_if(unknown, [&](const std::string& name) {
      return std::ranges::find(unknown_outside, name) == unknown_outside.end();
    });
  }
  note_unknown(unknown, where, description.notes);
  data::TransformOptions& pixels = description.pixels;
  pixels.mean = config.floats("mean", pixels.mean);
  pixels.std = config.floats("std", pixels.std);
  read_timm_crop(config, pixels);

  TimmConfig found;
  found.architecture = file.text("architecture", config.text("architecture", ""));
  found.input_side = input_side(config);
  if (file.has("num_classes"))
    found.classes = static_cast<int64_t>(std::clamp(file.number("num_classes", 0), 0.0, kMaxSize));
  if (const auto facts = timm_architecture(found.architecture); !facts.refused.empty()) {
    file.wrong("architecture", concat('"', escape(found.architecture), "\", which has ", facts.refused),
               "an architecture that Tessera's ViT computes");
  } else {
    found.heads = facts.heads;
    if (!facts.known && !found.architecture.empty()) {
      description.notes.push_back(concat(where, ": Tessera does not know the architecture \"",
                                         escape(found.architecture),
                                         "\", and computes a ViT with exact GELU, norms before attention and "
                                         "MLP, and learned positions only"));
    }
  }
  if (file.has("global_pool")) found.global_pool = file.text("global_pool", "");
  if (const json* inner_args = file.find("model_args")) {
    const Config args(dump(*inner_args), where + ": model_args");
    note_unknown(check_fields(ConfigFile::kTimmModel, dump(*inner_args), where + ": model_args"),
                 where + ": model_args", description.notes);
    if (args.has("global_pool")) found.global_pool = args.text("global_pool", "");
    if (args.has("num_heads")) found.heads = args.size("num_heads", 0);
    if (args.has("fc_norm")) found.fc_norm = args.flag("fc_norm", false);
  }
  for (const auto& names : {class_names(file), label_names(config, "labels"),
                            label_names(config, "label_names"), label_names(file, "label_names")}) {
    if (!names.empty()) description.classes = names;  // the last one decides, as in timm
  }
  return found;
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
  using data::EvalCrop;
  const bool shorter = pixels.eval_crop == EvalCrop::kCenter, crop = pixels.eval_crop != EvalCrop::kSquash;
  ordered_json root = {{"image_processor_type", shorter ? "BitImageProcessor"
                                                : crop  ? "DeiTImageProcessor"
                                                        : "ViTImageProcessor"},
                       {"do_resize", true},
                       {"resample", pixels.bicubic ? kBicubic : kBilinear},
                       {"do_rescale", true},
                       {"rescale_factor", 1.0 / 255},
                       {"do_normalize", true},
                       {"image_mean", pixels.mean},
                       {"image_std", pixels.std}};
  if (crop) {
    // As data::center_scaling rounds.
    const auto side = static_cast<int64_t>(static_cast<double>(image_size) / pixels.eval_crop_ratio + 1e-9);
    if (shorter) {
      root["size"] = {{"shortest_edge", side}};
    } else {
      root["size"] = {{"height", side}, {"width", side}};
    }
    root["do_center_crop"] = true;
    root["crop_size"] = {{"height", image_size}, {"width", image_size}};
  } else {
    root["size"] = {{"height", image_size}, {"width", image_size}};
  }
  return root.dump(2) + "\n";
}

}  // namespace tessera::weights
