// SPDX-License-Identifier: Apache-2.0
// Weights over several safetensors files with an index, as transformers and huggingface_hub split them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::weights {

inline constexpr int64_t kUsualShardBytes = 5'000'000'000;  // "5GB", huggingface_hub's own default

/// "5GB", "1.5 gb", "500MB", "15KB", "2TB" (powers of 1000, as huggingface_hub counts), "4096" bytes. Errors:
/// UserError on anything else and on less than one byte.
int64_t shard_bytes_of(const std::string& text);

/// Tensors of these sizes in files of at most `most` bytes: in order, a new file when the next does not fit;
/// what is larger than that has a file of its own. At least one file. Pure.
std::vector<std::vector<size_t>> split_into_shards(const std::vector<int64_t>& bytes, int64_t most);

/// Writes all parameters of `source` into `folder`, which exists: model.safetensors where they fit into one
/// file of `most` bytes of tensors, else model-00001-of-0000N.safetensors, ... and then
/// model.safetensors.index.json. Files of an earlier export that the new one has not are removed at the end.
/// Each file is replaced whole or not at all. `options.dtype` must be given. Errors: UserError, as
/// checkpoint::consolidate.
void write_hugging_face_tensors(checkpoint::TensorSource& source, const std::filesystem::path& folder,
                                int64_t most, const checkpoint::ConsolidateOptions& options);

}  // namespace tessera::weights
