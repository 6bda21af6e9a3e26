// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/shard_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadBytes = 1 << 20;  // a block: stays in the cache until it is summed up and copied

// Makes one copy, out of blocks of the file in ascending order.
class Cursor {
 public:
  explicit Cursor(ShardFile::Copy copy) : copy_(std::move(copy)) {
    end_ = copy_.offset + static_cast<uint64_t>(copy_.runs.end_in_a()) * copy_.width;
  }
  bool done() const { return copy_.runs.done(); }
  // Bytes of the file: the one that is wanted next, and one past the last that is wanted at all.
  uint64_t next() const { return copy_.offset + bytes((*copy_.runs).a) + taken_; }
  uint64_t end() const { return end_; }
  // Where bytes [position, position + size) of the file belong, if they all follow each other in memory.
  std::byte* place(uint64_t position, uint64_t size) const {
    const bool all = !done() && position == next() && size <= bytes((*copy_.runs).count) - taken_;
    return all ? to() : nullptr;
  }
  // Requires: no byte that is wanted lies before the block. Copies nothing that is in its place already.
  void take(uint64_t position, std::span<const std::byte> block) {
    while (!done() && next() < position + block.size()) {
      const uint64_t left = bytes((*copy_.runs).count) - taken_, skip = next() - position;
      const uint64_t size = std::min<uint64_t>(left, block.size() - skip);
      if (to() != block.data() + skip) std::memcpy(to(), block.data() + skip, size);
      taken_ += size;
      if (size < left) return;
      ++copy_.runs;
      taken_ = 0;
    }
  }

 private:
  uint64_t bytes(int64_t elements) const { return static_cast<uint64_t>(elements) * copy_.width; }
  std::byte* to() const { return copy_.to + bytes((*copy_.runs).b) + taken_; }

  ShardFile::Copy copy_;
  uint64_t taken_ = 0;  // bytes of the present run
  uint64_t end_ = 0;
};

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

void ShardFile::read(std::vector<Copy> copies) const { pass_over(std::move(copies), nullptr); }

void ShardFile::read_and_verify(std::vector<Copy> copies) const {
  Checksum checksum;
  pass_over(std::move(copies), &checksum);
  if (checksum.hex() != fact_.checksum) {
    damaged(concat("has the checksum ", checksum.hex()), fact_.checksum);
  }
}

// Makes the copies in one pass over the file. With a checksum, of all of it; else gaps are left out.
void ShardFile::pass_over(std::vector<Copy> copies, Checksum* checksum) const {
  std::vector<Cursor> waiting, active;
  for (auto& copy : copies) waiting.emplace_back(std::move(copy));
  std::sort(waiting.begin(), waiting.end(),
            [](const Cursor& a, const Cursor& b) { return a.next() > b.next(); });  // the first one is last
  std::vector<std::byte> buffer(std::min(kReadBytes, file_.size()));
  for (uint64_t position = 0; position < file_.size();) {
    uint64_t size = std::min(kReadBytes, file_.size() - position);
    if (checksum == nullptr) {
      uint64_t next = waiting.empty() ? file_.size() : waiting.back().next();
      for (const Cursor& cursor : active) next = std::min(next, cursor.next());
      position = next;
      size = std::min(kReadBytes, file_.size() - position);
    }
    while (!waiting.empty() && waiting.back().next() < position + size) {
      active.push_back(std::move(waiting.back()));
      waiting.pop_back();
    }
    if (checksum == nullptr) {
      uint64_t end = position;
      for (const Cursor& cursor : active) end = std::max(end, cursor.end());
      size = std::min(size, end - position);
    }
    // What all goes to one place is read there.
    std::byte* place = active.size() == 1 ? active[0].place(position, size) : nullptr;
    const std::span<std::byte> block(place != nullptr ? place : buffer.data(), size);
    file_.read(position, block);
    if (checksum != nullptr) checksum->update(block);
    for (Cursor& cursor : active) cursor.take(position, block);
    std::erase_if(active, [](const Cursor& cursor) { return cursor.done(); });
    position += size;
  }
}

}  // namespace tessera::checkpoint
