// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/checkpoint/shard_file.h"

namespace tessera::checkpoint {

std::vector<std::string> verify(const Folders& checkpoint) {
  std::vector<std::string> faults;
  try {
    const StoredManifest stored = read_stored(checkpoint);  // checks that the regions cover every tensor
    const auto by_shard = regions_by_shard(stored);
    for (size_t shard = 0; shard < by_shard.size(); ++shard) {
      try {
        const ShardFile file(checkpoint, stored, static_cast<int64_t>(shard));
        file.read_and_verify({});
        file.check_header(by_shard[shard]);
      } catch (const UserError& error) {
        faults.emplace_back(error.what());
      }
    }
  } catch (const UserError& error) {
    faults.emplace_back(error.what());
  }
  return faults;
}

}  // namespace tessera::checkpoint
