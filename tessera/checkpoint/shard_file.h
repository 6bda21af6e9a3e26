// SPDX-License-Identifier: Apache-2.0
// One shard file of a checkpoint, written as planned and read against what the manifest says of it.
//
// Every fault (missing, cut off, another checksum, another header) is the UserError
// "[checkpoint.shard] shard-... is missing (FOLDERS); ...".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/region.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/formats/safetensors.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera {
class Checksum;
}

namespace tessera::checkpoint {

/// Writes the file of `shard`: its header, then every region by a call of `write_piece` in the planned order.
/// Syncs it. Errors: UserError with path and reason; the file is removed.
ShardFact write_shard(const std::filesystem::path& path, const StoredManifest& plan, int64_t shard,
                      const std::function<void(RegionIndex, formats::SafetensorsWriter&)>& write_piece);

/// Which of a checkpoint's shard files are where. Remembers what it has looked for; one thread.
class ShardFolders {
 public:
  /// `checkpoint` and `stored` must outlive the object.
  ShardFolders(const Folders& checkpoint, const StoredManifest& stored)
      : checkpoint_(checkpoint), stored_(stored), places_(stored.shards.size()) {}

  /// The folder that has the file; none where it is missing.
  const std::filesystem::path* folder_of(int64_t shard);
  /// A shard whose file is there and has this region; the region's own where none is.
  int64_t shard_of(const StoredRegion& region);

 private:
  const Folders& checkpoint_;
  const StoredManifest& stored_;
  std::vector<std::optional<const std::filesystem::path*>> places_;
};

class ShardFile {
 public:
  /// Opens the file and reads its header. `stored` must outlive the object.
  ShardFile(const Folders& checkpoint, const StoredManifest& stored, int64_t shard);

  /// Elements of a region of the file that go to memory.
  struct Copy {
    uint64_t offset = 0;  // byte of the file where the region begins
    uint64_t width = 0;   // bytes per element
    SharedRuns runs;      // a: in the region, b: from `to` on
    std::byte* to = nullptr;
  };
  /// Checks that the file has the regions planned for it and nothing else.
  void check_header(const std::vector<RegionIndex>& regions) const;
  /// Byte of the file where a region begins.
  uint64_t offset(RegionIndex index) const;
  /// Makes the copies; of the file, reads what they need and what lies closely between.
  void read(std::vector<Copy> copies) const;
  /// Makes the copies while it reads the whole file once and checks its checksum. What was copied counts
  /// only if this returns.
  void read_and_verify(std::vector<Copy> copies) const;

 private:
  /// `problem` follows the file's name.
  [[noreturn]] void damaged(const std::string& problem, const std::string& expected = "") const;
  [[noreturn]] void missing() const;
  std::string where() const;
  FileReader open() const;
  void pass_over(std::vector<Copy> copies, Checksum* checksum) const;

  Folders checkpoint_;
  int64_t shard_;
  std::string name_;
  const StoredManifest& stored_;
  ShardFact fact_;
  FileReader file_;
  formats::SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;  // region's name -> entry
};

}  // namespace tessera::checkpoint
