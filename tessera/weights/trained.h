// SPDX-License-Identifier: Apache-2.0
// Trained weights with all that is known of them, whoever trained them: what a fine-tuning, a teacher or a
// program that only classifies begins with. No LibTorch.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/checkpoint/tensor_source.h"
#include "tessera/data/loader.h"
#include "tessera/weights/weights.h"

namespace tessera::weights {

struct Trained {
  std::shared_ptr<checkpoint::TensorSource> tensors;  // "param/NAME", "buffer/NAME", perhaps more
  arch::ModelConfig model;                            // classes = 0: there is no head
  data::TransformOptions pixels;                      // how its images are made, sizes as the model's
  std::vector<std::string> classes = {};              // names in label order; may be empty or fewer
  std::string origin;                                 // the file and what it is, for people
  std::vector<std::string> notes = {};                // what was left out or guessed, a line each
};

/// A run or checkpoint of Tessera's of any family (of a run the best, else the latest; the trained weights,
/// not their average), or a file or folder of a ViT that open_model knows. Reads headers only. Errors:
/// UserError in one line, as open_model's.
Trained open_trained(const std::filesystem::path& path, const OpenOptions& options = {});

/// The names of the classes, in label order, that a run saved with its weights; empty: it saved none.
std::vector<std::string> saved_classes(const checkpoint::Progress& progress);
/// The same of a checkpoint or of a safetensors file that Tessera made of one.
std::vector<std::string> saved_classes(const Opened& opened);

}  // namespace tessera::weights
