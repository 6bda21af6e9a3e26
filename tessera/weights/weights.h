// SPDX-License-Identifier: Apache-2.0
// Weights in: any file of a ViT as Tessera's parameters. Start here. No LibTorch.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/weights/family.h"
#include "tessera/weights/files.h"

namespace tessera::weights {

struct OpenOptions {
  std::optional<Family> from;  // none: by the names of the tensors
  bool ema = true;             // of a training checkpoint the averaged weights, where there are some
  int64_t heads = 0;           // where the file does not say; 0: as other models of its size
};

/// A model with Tessera's (timm's) names, "param/" before them, float32, read tensor by tensor as it is asked
/// for.
struct Model {
  std::unique_ptr<checkpoint::TensorSource> tensors;
  Description description;
  std::filesystem::path file;
};

/// A checkpoint of Tessera's, or a file or folder of timm, DeiT, MAE, DINO, DINOv2, torchvision, Hugging Face
/// or Google. Reads headers only. Errors: UserError in one line: no such file, a file that is cut off or of
/// another kind, a pickle with code, a family or variant that is not known, tensors that are missing or of
/// another shape.
Model open_model(const std::filesystem::path& path, const OpenOptions& options = {});
/// The same of what open_file opened.
Model open_model(const Opened& opened, const OpenOptions& options);

/// By the names of the tensors. Errors: UserError that names some of them.
Family detect_family(const Opened& opened);

}  // namespace tessera::weights
