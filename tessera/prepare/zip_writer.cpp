// SPDX-License-Identifier: Apache-2.0
// Zip archives. Members are stored: image files do not shrink.
#include <zlib.h>

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/formats/zip_directory.h"
#include "tessera/formats/zip_record.h"
#include "tessera/prepare/partial_file.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLocalBytes = 30, kMost32 = 0xFFFFFFFF, kMost16 = 0xFFFF;

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

class ZipWriter : public Writer {
 public:
  explicit ZipWriter(fs::path folder) : folder_(std::move(folder)) {}

  Block frame(Sample sample) const override {
    if (sample.file.size() >= kMost32 || sample.path.size() > kMost16) {
      user_error({.where = "prepare.zip",
                  .problem = concat(sample.path, " has ", sample.file.size(), " bytes"),
                  .expected = "less than 4 GiB in a zip file"});
    }
    Block block;
    const auto* bytes = reinterpret_cast<const Bytef*>(sample.file.data());
    block.crc32 = static_cast<uint32_t>(crc32_z(0, bytes, sample.file.size()));
    block.bytes = formats::zip_local_header({sample.path, block.crc32, sample.file.size(), 0});
    block.image_at = block.bytes.size();
    block.image_size = sample.file.size();
    block.bytes += sample.file;
    sample.file = {};
    block.sample = std::move(sample);
    return block;
  }

  /// Of a zip that has its name; open() looks at what is not finished.
  void check(const Split& split, bool closed) const override {
    const fs::path zip = folder_ / (split.name + ".zip"), map = folder_ / (split.name + "_map.txt");
    if (!closed && !fs::exists(zip)) return;
    uint64_t samples = 0, bytes = 0;
    for (const SealedPart& part : split.parts) {
      samples += static_cast<uint64_t>(part.samples);
      bytes += part.bytes;
    }
    if (samples == 0) return;
    const FileReader file(zip);
    uint64_t members = 0, directory = 0;
    formats::visit_zip_directory(file, [&](const formats::ZipMember& member) {
      ++members;
      directory +=
          formats::zip_directory_entry({member.name, member.crc32, member.size, member.header}).size();
    });
    check_written(zip, bytes + directory + formats::zip_directory_end(bytes, directory, members).size());
    const std::string text = read_file(map);
    const auto lines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
    if (members == samples && lines == samples) return;
    user_error({.where = "prepare.resume",
                .problem = concat(zip.string(), " has ", members, " samples and ", map.string(), " ", lines),
                .expected = concat(samples, " in both, as an earlier run wrote them"),
                .hint = "empty the folder and start again"});
  }

  void open(const Split& split) override {
    zip_path_ = folder_ / (split.name + ".zip");
    map_path_ = folder_ / (split.name + "_map.txt");
    directory_.clear();
    members_ = 0;
    zip_.reset();
    map_.reset();
    if (fs::exists(zip_path_)) return;  // its rename was the last thing an earlier run did
    uint64_t bytes = 0;
    int64_t samples = 0;
    for (const SealedPart& part : split.parts) {
      bytes += part.bytes;
      samples += part.samples;
    }
    // The map is renamed first: a run that ended between the two left it under its own name.
    const fs::path map_part = PartialFile::part_of(map_path_);
    if (fs::exists(map_path_) && !fs::exists(map_part)) fs::rename(map_path_, map_part);
    zip_.emplace(zip_path_, bytes);
    map_.emplace(map_path_, map_bytes(map_part, samples));
    read_back(bytes);
  }

  void append(const Block& block) override {
    directory_ +=
        formats::zip_directory_entry({block.sample.path, block.crc32, block.image_size, zip_->size()});
    ++members_;
    zip_->append(block.bytes);
    map_->append(concat(block.sample.path, '\t', block.sample.label, '\n'));
  }

  void seal() override {
    map_->sync();
    zip_->sync();
  }

  void close() override {
    if (!zip_) return;
    const uint64_t offset = zip_->size();
    zip_->append(directory_);
    zip_->append(formats::zip_directory_end(offset, directory_.size(), members_));
    map_->publish();
    zip_->publish();
    zip_.reset();
    map_.reset();
  }

  void finish(const std::vector<Split>& splits) override {
    write_published(folder_ / "classes.txt", join(splits.at(0).classes, "\n") + "\n");
  }

 private:
  static uint64_t map_bytes(const fs::path& part, int64_t samples) {
    if (samples == 0) return 0;
    const std::string text = read_file(part);
    size_t at = 0;
    for (int64_t i = 0; i < samples; ++i) {
      at = text.find('\n', at);
      if (at == std::string::npos) {
        user_error({.where = "prepare.resume",
                    .problem = concat(part.string(), " has ", i, " lines"),
                    .expected = concat("at least ", samples, ", as an earlier run wrote them"),
                    .hint = kChanged});
      }
      ++at;
    }
    return at;
  }

  /// The directory of what an earlier run wrote, from the local headers.
  void read_back(uint64_t bytes) {
    if (bytes == 0) return;
    const FileReader file(PartialFile::part_of(zip_path_));
    uint64_t at = 0;
    while (at < bytes) {
      std::string header(kLocalBytes, '\0');
      file.read(at, std::as_writable_bytes(std::span(header)));
      const uint32_t size = read_u32(header, 18), name_size = read_u32(header, 26) & 0xFFFFU;
      std::string name(name_size, '\0');
      file.read(at + kLocalBytes, std::as_writable_bytes(std::span(name)));
      directory_ += formats::zip_directory_entry({std::move(name), read_u32(header, 14), size, at});
      ++members_;
      at += kLocalBytes + name_size + size;
    }
    if (at == bytes) return;
    user_error({.where = "prepare.resume",
                .problem = concat("the last member of ", file.path().string(), " ends at byte ", at),
                .expected = concat("members up to byte ", bytes, ", as an earlier run wrote them"),
                .hint = kChanged});
  }

  fs::path folder_, zip_path_, map_path_;
  std::string directory_;
  uint64_t members_ = 0;
  std::optional<PartialFile> zip_, map_;
};

}  // namespace

std::unique_ptr<Writer> zip_writer(const fs::path& folder) { return std::make_unique<ZipWriter>(folder); }

}  // namespace tessera::prepare
