// One shard file of a checkpoint, read against what the manifest says of it. Private to the room.
//
// Every fault (missing, cut off, another checksum, another header) is the UserError
// "[checkpoint.shard] shard-... as it was saved: ...".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/checkpoint/layout.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::checkpoint {

class ShardFile {
 public:
  /// Opens the file and reads its header. `stored` must outlive the object.
  ShardFile(const std::filesystem::path& checkpoint, const StoredManifest& stored, int64_t shard);

  /// Bytes of the file that go to memory.
  struct Copy {
    uint64_t offset = 0;
    std::span<std::byte> to;
  };
  /// Byte of the file where a piece begins.
  uint64_t offset(PieceIndex index) const;
  /// Makes the copies and nothing else.
  void read(std::span<const Copy> copies) const;
  /// Makes the copies while it reads the whole file once and checks its checksum. What was copied counts
  /// only if this returns.
  void read_and_verify(std::vector<Copy> copies) const;

 private:
  [[noreturn]] void damaged(const std::string& how) const;
  FileReader open() const;

  std::filesystem::path checkpoint_;
  std::string name_;
  const StoredManifest& stored_;
  ShardFact fact_;
  FileReader file_;
  formats::SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;  // piece's name -> entry
};

}  // namespace tessera::checkpoint
