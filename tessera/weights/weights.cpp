// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/weights.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/weights/hugging_face_config.h"

namespace tessera::weights {
namespace {

constexpr size_t kNamedTensors = 3;

Foreign read_family(Family family, const Opened& opened, const FamilyOptions& options) {
  switch (family) {
    case Family::kTimm:
      return read_timm(opened, options);
    case Family::kTorchvision:
      return read_torchvision(opened, options);
    case Family::kHuggingFace:
      return read_hugging_face(opened, options);
    case Family::kGoogle:
    case Family::kBigVision:
      return read_google(opened, options);
  }
  TESSERA_CHECK(false, static_cast<int>(family));
  return read_timm(opened, options);
}

/// Sizes as the model's; of three numbers, one a channel, a grey model takes the first.
void fit_pixels(Description& description) {
  data::TransformOptions& pixels = description.pixels;
  pixels.image_size = description.config.image_size;
  pixels.channels = description.config.channels;
  const auto channels = static_cast<size_t>(pixels.channels);
  for (auto* numbers : {&pixels.mean, &pixels.std}) {
    if (numbers->size() > channels) numbers->resize(channels);
  }
}

std::optional<Family> family_by_names(const Opened& opened) {
  const auto& tensors = opened.source->tensors();
  const auto ends = [&](std::string_view end) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name.ends_with(end); });
  };
  if (ends("embeddings.patch_embeddings.projection.weight")) return Family::kHuggingFace;
  if (ends("patch_embed.proj.weight")) return Family::kTimm;
  if (ends("conv_proj.weight") && ends("class_token")) return Family::kTorchvision;
  if (ends("embedding/kernel")) {
    return ends("/MlpBlock_3/Dense_0/kernel") ? Family::kGoogle : Family::kBigVision;
  }
  return std::nullopt;
}

}  // namespace

Family detect_family(const Opened& opened) {
  if (const auto found = family_by_names(opened)) return *found;
  const auto& tensors = opened.source->tensors();
  // A model of transformers that Tessera has not is known by its type better than by its tensors.
  const auto config_file = opened.file.parent_path() / "config.json";
  if (opened.kind != Opened::Kind::kTessera && opened.files->exists(config_file)) {
    if (const std::string type = hugging_face_model_type(opened.files->read_whole(config_file));
        !type.empty())
      check_hugging_face_model_type(type, config_file.string());
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(kNamedTensors, tensors.size()); ++i)
    names.push_back(escape(tensors[i].name));
  user_error(
      {.where = "weights.open",
       .problem = concat(opened.file.string(), " has ", names.empty() ? "no tensor" : join(names, ", "),
                         tensors.size() > kNamedTensors ? ", ..." : ""),
       .expected = "a ViT with the tensor names of timm, torchvision, Hugging Face or Google"});
}

Model open_model(const std::filesystem::path& path, const OpenOptions& options) {
  return open_model(open_file(path, options.ema), options);
}

Model open_model(const Opened& opened, const OpenOptions& options) {
  const Family family = options.from ? *options.from : detect_family(opened);
  Foreign foreign = read_family(family, opened, {options.heads});
  auto& description = foreign.description;
  fit_pixels(description);
  if (!opened.nested.empty()) description.notes.push_back(concat("the weights are those of ", opened.nested));
  Model model;
  model.tensors = std::make_unique<MappedSource>(std::move(foreign.tensors), foreign.mapping,
                                                 Direction::kImport, checkpoint::Progress{});
  model.description = std::move(description);
  model.file = opened.file;
  return model;
}

}  // namespace tessera::weights
