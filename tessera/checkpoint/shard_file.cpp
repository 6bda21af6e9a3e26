#include "tessera/checkpoint/shard_file.h"

#include <algorithm>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // stays in the cache between reading and summing up

}  // namespace

ShardFile::ShardFile(const fs::path& checkpoint, const StoredManifest& stored, int64_t shard)
    : checkpoint_(checkpoint),
      name_(names::shard(shard, stored.manifest.world)),
      stored_(stored),
      fact_(stored.shards.at(static_cast<size_t>(shard))),
      file_(open()) {
  try {
    header_ = formats::read_safetensors_header(file_);
  } catch (const UserError& error) {
    damaged(error.what());
  }
  for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

FileReader ShardFile::open() const {
  const fs::path path = checkpoint_ / name_;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) damaged("the file is missing");
  if (!error && size != fact_.bytes) {
    damaged(concat("it has ", size, " bytes, expected ", fact_.bytes));
  }
  return FileReader(path);
}

void ShardFile::damaged(const std::string& how) const {
  user_error("checkpoint.shard", name_, " as it was saved: ", how, " (", checkpoint_.string(), "; ",
             advice_beside(checkpoint_), ')');
}

uint64_t ShardFile::offset(PieceIndex index) const {
  const auto wanted = shard_entry(stored_, index);
  const auto at = index_.find(wanted.name);
  if (at == index_.end()) damaged("its header lacks " + wanted.name);
  const auto& entry = header_.entries[at->second];
  if (entry.dtype != wanted.dtype || entry.shape != wanted.shape) {
    damaged(concat("its header has ", entry.dtype, ' ', shape_text(entry.shape), " for ", wanted.name,
                   ", expected ", wanted.dtype, ' ', shape_text(wanted.shape)));
  }
  return header_.buffer_start + entry.begin;
}

void ShardFile::read(std::span<const Copy> copies) const {
  for (const auto& copy : copies) file_.read(copy.offset, copy.to);
}

void ShardFile::read_and_verify(std::vector<Copy> copies) const {
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.offset < b.offset; });
  Checksum checksum;
  uint64_t position = 0;
  const auto take = [&](std::span<std::byte> to) {
    file_.read(position, to);
    checksum.update(to);
    position += to.size();
  };
  std::vector<std::byte> unwanted(std::min(kReadBytes, file_.size()));
  const auto skip_to = [&](uint64_t offset) {
    while (position < offset) take(std::span(unwanted).first(std::min(kReadBytes, offset - position)));
  };
  for (auto [offset, to] : copies) {
    skip_to(offset);
    // Two copies of the same bytes: the second reads again what has been summed up already.
    const uint64_t again = std::min<uint64_t>(position - offset, to.size());
    file_.read(offset, to.first(again));
    for (to = to.subspan(again); !to.empty(); to = to.subspan(std::min<size_t>(kReadBytes, to.size()))) {
      take(to.first(std::min<size_t>(kReadBytes, to.size())));
    }
  }
  skip_to(file_.size());
  if (checksum.hex() != fact_.checksum) {
    damaged(concat("its checksum is ", checksum.hex(), ", expected ", fact_.checksum));
  }
}

}  // namespace tessera::checkpoint
