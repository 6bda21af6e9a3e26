// SPDX-License-Identifier: Apache-2.0
// Files of tensors as other programs write them, each as a source of tensors under its own names. Nothing
// here knows what the tensors mean.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::weights {

/// A file, or the files of one model, opened.
struct Opened {
  std::shared_ptr<checkpoint::TensorSource> source;
  std::filesystem::path file;  // the one named, or found in a folder
  enum class Kind { kSafetensors, kTorch, kNpz, kTessera } kind = Kind::kSafetensors;
  std::map<std::string, std::string> metadata;  // of safetensors
  std::string recipe_toml;   // of a checkpoint of Tessera's, and of what was consolidated from one
  std::string passed_over;   // a line about damaged checkpoints that were passed over; "" for none
  std::string nested;        // of torch.save: where in the file they were ("model_ema")
  std::string architecture;  // of torch.save: "arch" of a training checkpoint of timm; "" for none
  const FileSystem* files = &local_files();  // where `file` is, and what lies beside it
};

/// By its content: a safetensors file, the index of a sharded one (model.safetensors.index.json), a file of
/// torch.save, an .npz; a run or a checkpoint of Tessera's (of a run the best, else the latest); or a folder
/// that holds model.safetensors, its index, pytorch_model.bin or one file of these kinds. `ema`: of a
/// training checkpoint the averaged weights where there are some, as timm takes them. `files`: where `path`
/// is, except runs and checkpoints of Tessera, which are local; it outlives the source. Errors: UserError
/// that names the file and what it is instead.
Opened open_file(const std::filesystem::path& path, bool ema = true, const FileSystem& files = local_files());

std::shared_ptr<checkpoint::TensorSource> open_safetensors(std::unique_ptr<const ByteSource> file,
                                                           std::map<std::string, std::string>& metadata);
/// The files that `index` names lie beside it. Errors: UserError, also when a tensor is in another file than
/// the index says, or a name leads elsewhere.
std::shared_ptr<checkpoint::TensorSource> open_sharded_safetensors(const FileSystem& files,
                                                                   const std::filesystem::path& index);
/// Sets `opened.nested` and `opened.architecture`.
std::shared_ptr<checkpoint::TensorSource> open_torch(std::unique_ptr<const ByteSource> file, bool ema,
                                                     Opened& opened);
std::shared_ptr<checkpoint::TensorSource> open_npz(std::unique_ptr<const ByteSource> file);

/// File to its name, of an index of sharded safetensors: the text of model.safetensors.index.json. Errors:
/// UserError that names `where`.
std::map<std::string, std::string> parse_index(const std::string& json, const std::string& where);

}  // namespace tessera::weights
