// SPDX-License-Identifier: Apache-2.0
// Other people's Vision Transformers: how they name, shape and order what Tessera calls by timm's names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/arch/vit.h"
#include "tessera/data/loader.h"
#include "tessera/weights/files.h"
#include "tessera/weights/mapped_source.h"
#include "tessera/weights/mapping.h"

namespace tessera::weights {

enum class Family {
  kTimm,  // also DeiT, MAE, DINO, DINOv2
  kTorchvision,
  kHuggingFace,  // transformers' ViT
  kGoogle,       // .npz of google-research/vision_transformer
  kBigVision     // .npz of google-research/big_vision
};

/// "timm", "torchvision", "hf", "npz", "big_vision".
std::string to_string(Family family);
/// Errors: UserError that names the nearest.
Family family_of(const std::string& name);

/// What is known of a model besides its tensors.
struct Description {
  Family family = Family::kTimm;
  std::string variant;                    // "timm", "DINOv2", "MAE, pretrained", ...: for people
  arch::VitConfig config;                 // classes = 0: the file has no head
  data::TransformOptions pixels;          // what the model expects of images: mean, std, crop, interpolation
  std::vector<std::string> classes = {};  // names in label order; empty: not known
  std::vector<std::string> notes = {};    // what was left out or guessed, a line each
};

/// A model of others, understood.
struct Foreign {
  Description description;
  Named tensors;
  Mapping mapping;
};

struct FamilyOptions {
  int64_t heads = 0;  // where a file does not say; 0: as other models of its width and depth
};

/// Each throws UserError when the tensors are not that family's, or of a variant that Tessera's ViT has no
/// place for (named).
Foreign read_timm(const Opened& opened, const FamilyOptions& options);
Foreign read_torchvision(const Opened& opened, const FamilyOptions& options);
Foreign read_hugging_face(const Opened& opened, const FamilyOptions& options);
Foreign read_google(const Opened& opened, const FamilyOptions& options);

/// The mapping to export a model with. Errors: UserError when the family has no such model (named).
Mapping timm_mapping(const arch::VitConfig& config);
Mapping torchvision_mapping(const arch::VitConfig& config);
Mapping hugging_face_mapping(const arch::VitConfig& config);
Mapping google_mapping(const arch::VitConfig& config);
Mapping big_vision_mapping(const arch::VitConfig& config);

/// Mean and standard deviation 0.5, as Google's models; or ImageNet's.
void set_pixels(data::TransformOptions& pixels, bool imagenet);

}  // namespace tessera::weights
