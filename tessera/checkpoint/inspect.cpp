// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/checkpoint/tools.h"

namespace tessera::checkpoint {

Inspection inspect(const Folders& checkpoint) {
  Inspection result{.stored = read_stored(checkpoint), .files = {}};
  const int64_t world = result.stored.manifest.world;
  ShardFolders places(checkpoint, result.stored);
  for (int64_t shard = 0; shard < world; ++shard) {
    auto& file = result.files.emplace_back();
    file.name = names::shard(shard, world);
    if (const auto* folder = places.folder_of(shard)) {
      std::error_code ignored;
      file.folder = *folder;
      file.bytes = std::filesystem::file_size(*folder / file.name, ignored);
    }
  }
  return result;
}

}  // namespace tessera::checkpoint
