// SPDX-License-Identifier: Apache-2.0
// Weights out: a model of Tessera as others' programs read it. Straight from a checkpoint's shards, a window
// of a tensor at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/weights/family.h"
#include "tessera/weights/hugging_face_shards.h"

namespace tessera::weights {

struct ExportOptions {
  std::string dtype = "F32";                   // F32, F16, BF16 (which NumPy calls V2)
  int64_t max_shard_bytes = kUsualShardBytes;  // Hugging Face: of the tensors of one file
};

/// `source`: "param/..." of the model, whatever else it has is left out. timm, torchvision: one safetensors
/// file that load_state_dict takes (mean and std are in its metadata). Hugging Face: a folder of
/// model.safetensors (or several files and their index), config.json and preprocessor_config.json for
/// from_pretrained. Google, big_vision: an .npz. Files are replaced whole or not at all. Errors: UserError
/// when the family has no such model, or source or output fail.
void export_model(std::shared_ptr<checkpoint::TensorSource> source, const Description& model, Family to,
                  const std::filesystem::path& output, const ExportOptions& options = {});

/// All tensors of "param/", in an .npz. Reads each twice: the checksum of what is written stands before it.
void write_npz(checkpoint::TensorSource& source, const std::filesystem::path& output,
               const std::string& dtype);

}  // namespace tessera::weights
