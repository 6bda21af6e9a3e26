// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/shard_file.h"

#include <algorithm>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // stays in the cache between reading and summing up

const fs::path* folder_with(const Folders& checkpoint, const std::string& file) {
  std::error_code ignored;
  const auto at = std::find_if(checkpoint.paths.begin(), checkpoint.paths.end(),
                               [&](const fs::path& folder) { return fs::exists(folder / file, ignored); });
  return at == checkpoint.paths.end() ? nullptr : &*at;
}

}  // namespace

ShardFact write_shard(const fs::path& path, const StoredManifest& plan, int64_t shard,
                      const std::function<void(RegionIndex, formats::SafetensorsWriter&)>& write_piece) {
  const auto regions = regions_by_shard(plan).at(static_cast<size_t>(shard));
  std::vector<formats::SafetensorsEntry> entries;
  for (const auto index : regions) entries.push_back(shard_entry(plan, index));
  formats::SafetensorsWriter writer(
      path, std::move(entries),
      {{"format", "tessera shard"}, {"step", std::to_string(plan.manifest.progress.step)}});
  for (const auto index : regions) write_piece(index, writer);
  const std::string checksum = writer.finish();
  return {.bytes = fs::file_size(path), .checksum = checksum};
}

const fs::path* ShardFolders::folder_of(int64_t shard) {
  auto& place = places_.at(static_cast<size_t>(shard));
  if (!place) place = folder_with(checkpoint_, names::shard(shard, stored_.manifest.world));
  return *place;
}

int64_t ShardFolders::shard_of(const StoredRegion& region) {
  if (folder_of(region.shard) != nullptr) return region.shard;
  const auto there = std::find_if(region.copies.begin(), region.copies.end(),
                                  [&](int64_t shard) { return folder_of(shard) != nullptr; });
  return there == region.copies.end() ? region.shard : *there;
}

ShardFile::ShardFile(const Folders& checkpoint, const StoredManifest& stored, int64_t shard)
    : checkpoint_(checkpoint),
      shard_(shard),
      name_(names::shard(shard, stored.manifest.world)),
      stored_(stored),
      fact_(stored.shards.at(static_cast<size_t>(shard))),
      file_(open()) {
  try {
    header_ = formats::read_safetensors_header(file_);
  } catch (const UserError& error) {
    damaged(concat("cannot be read: ", error.what()));
  }
  for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

FileReader ShardFile::open() const {
  const fs::path* folder = folder_with(checkpoint_, name_);
  if (folder == nullptr) missing();
  const fs::path path = *folder / name_;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (!error && size != fact_.bytes) {
    damaged(concat("has ", size, " bytes"), concat(fact_.bytes, " bytes"));
  }
  return FileReader(path);
}

std::string ShardFile::where() const {
  std::vector<std::string> folders;
  for (const auto& folder : checkpoint_.paths) folders.push_back(folder.string());
  return join(folders, ", ");
}

void ShardFile::missing() const {
  if (fact_.host.empty()) damaged("is missing");
  user_error({.where = "checkpoint.shard",
              .problem = concat(name_, " is missing (", where(), "): rank ", shard_, " wrote it on host ",
                                fact_.host),
              .hint = "give the folders of all hosts; tessera checkpoint reshard joins them in one folder"});
}

void ShardFile::damaged(const std::string& problem, const std::string& expected) const {
  user_error({.where = "checkpoint.shard",
              .problem = concat(name_, ' ', problem, " (", where(), ')'),
              .expected = expected,
              .hint = advice_beside(checkpoint_.paths.at(0))});
}

void ShardFile::check_header(const std::vector<RegionIndex>& regions) const {
  for (const auto index : regions) offset(index);
  if (header_.entries.size() != regions.size()) {
    damaged(concat("has ", header_.entries.size(), " tensors in its header"),
            concat(regions.size(), " tensors"));
  }
}

uint64_t ShardFile::offset(RegionIndex index) const {
  const auto wanted = shard_entry(stored_, index);
  const auto at = index_.find(wanted.name);
  if (at == index_.end()) damaged("has no tensor " + wanted.name + " in its header");
  const auto& entry = header_.entries[at->second];
  if (entry.dtype != wanted.dtype || entry.shape != wanted.shape) {
    damaged(concat("has ", wanted.name, " as ", entry.dtype, ' ', shape_text(entry.shape), " in its header"),
            concat(wanted.dtype, ' ', shape_text(wanted.shape)));
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
    damaged(concat("has the checksum ", checksum.hex()), fact_.checksum);
  }
}

}  // namespace tessera::checkpoint
