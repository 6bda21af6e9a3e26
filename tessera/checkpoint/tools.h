// SPDX-License-Identifier: Apache-2.0
// What can be done with a checkpoint without a model: one file of it, the same for other ranks, its facts. No
// tensor is ever held whole: kWindowBytes of it at a time, whatever the model.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

struct ConsolidateOptions {
  bool average = false;     // the moving average of the parameters ("ema/...") in their place
  bool with_state = false;  // also what is neither parameter nor buffer, under its full name
  std::string dtype = {};   // of floating-point parameters and buffers: F32, BF16, F16; empty: as saved
  std::map<std::string, std::string> metadata = {};  // added to format and tessera.step, .recipe, .classes
};

/// A recipe's text in which only the last name of each absolute path is left ("folder:/home/me/flowers"
/// becomes "folder:flowers"): what leaves this machine says nothing of its folders.
std::string without_local_paths(std::string_view recipe_toml);

/// Writes one safetensors file of whole tensors, as Python's safetensors lays them out. Parameters and
/// buffers lose "param/" and "buffer/". Atomic (temporary name, sync, rename). Errors: UserError when nothing
/// is to be written, two names become one, a dtype cannot be converted, or source or output fail.
void consolidate(TensorSource& source, const std::filesystem::path& output,
                 const ConsolidateOptions& options);

/// Writes a checkpoint as `world` ranks would have saved it into `folder`: every tensor in equal shards of
/// the flattened elements, bit for bit. Atomic, like save; an existing one of the same step is replaced.
/// Holds the locks of a run that has the folder meanwhile. Returns the checkpoint. Errors: UserError, also
/// where a run saves into the folder.
std::filesystem::path reshard(TensorSource& source, const std::filesystem::path& folder, int64_t world);

/// What a checkpoint says of itself and which of its files are there. Reads no tensor.
struct Inspection {
  StoredManifest stored;
  struct File {
    std::string name;
    std::filesystem::path folder;  // empty: missing
    uint64_t bytes = 0;            // found
  };
  std::vector<File> files;  // by rank
};
/// Errors: UserError on a missing or broken manifest.
Inspection inspect(const Folders& checkpoint);

}  // namespace tessera::checkpoint
