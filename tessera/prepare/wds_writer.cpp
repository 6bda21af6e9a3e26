// SPDX-License-Identifier: Apache-2.0
// POSIX.1-1988 tar (ustar): 512-byte headers, contents padded to 512 bytes, two empty blocks at the end.
// DALI's index: "v1.2 SAMPLES", then a line a sample: "ENDING OFFSET SIZE NAME" for each member.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/prepare/sharded_writer.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBlock = 512;
constexpr uint64_t kLargest = 077777777777;  // eleven octal digits

/// Nothing of the machine or the moment is in it: the same samples give the same bytes.
std::string tar_header(const std::string& name, uint64_t size) {
  TESSERA_CHECK(name.size() <= 100, name);
  if (size > kLargest)
    user_error({.where = "prepare.tar",
                .problem = concat(name, " has ", size, " bytes"),
                .expected = "at most 8 GiB in a tar file"});
  std::string header(kBlock, '\0');
  const auto put = [&](size_t at, std::string_view text) { text.copy(header.data() + at, text.size()); };
  const auto octal = [&](size_t at, int digits, uint64_t value) {
    std::array<char, 48> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%0*llo", digits, static_cast<unsigned long long>(value));
    put(at, buffer.data());
  };
  put(0, name);
  octal(100, 7, 0644);
  octal(108, 7, 0);  // user and group
  octal(116, 7, 0);
  octal(124, 11, size);
  octal(136, 11, 0);  // time
  put(148, "        ");
  header[156] = '0';  // a plain file
  put(257, std::string_view("ustar\00000", 8));
  octal(329, 7, 0);  // device
  octal(337, 7, 0);
  uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  octal(148, 6, sum);
  header[154] = '\0';
  return header;
}

void append_member(std::string& out, const std::string& name, std::string_view content) {
  out += tar_header(name, content.size());
  out += content;
  out.append((kBlock - content.size() % kBlock) % kBlock, '\0');
}

class WdsWriter : public ShardedWriter {
 public:
  WdsWriter(fs::path folder, WriterOptions options) : ShardedWriter(std::move(folder), std::move(options)) {}

  Block frame(Sample sample) const override {
    Block block;
    append_member(block.bytes, sample.key + ".cls", std::to_string(sample.label));
    block.image_at = block.bytes.size() + kBlock;
    block.image_size = sample.file.size();
    append_member(block.bytes, concat(sample.key, ".", sample.ending), sample.file);
    return without_file(std::move(block), std::move(sample));
  }

  void check(const Split& split, bool) const override {
    size_t shard = 0;
    for (const SealedPart& part : split.parts) {
      if (part.samples > 0) check_written(shard_path(split.name, shard++, ".tar"), part.bytes + 2 * kBlock);
    }
  }

  void append(const Block& block) override {
    if (!file_) file_.emplace(shard_path(split_, shard_, ".tar"));
    const Sample& sample = block.sample;
    const uint64_t begin = file_->size();
    lines_ += concat("cls ", begin + kBlock, " ", std::to_string(sample.label).size(), " ", sample.key,
                     ".cls ", sample.ending, " ", begin + block.image_at, " ", block.image_size, " ",
                     sample.key, ".", sample.ending, "\n");
    ++samples_;
    file_->append(block.bytes);
  }

  void seal() override {
    if (!file_) return;
    file_->append(std::string(2 * kBlock, '\0'));
    write_indexes();
    publish_shard();
    lines_.clear();
    samples_ = 0;
  }

  void close() override {}

  void finish(const std::vector<Split>& splits) override {
    write_published(folder_ / "classes.txt", join(splits.at(0).classes, "\n") + "\n");
  }

 private:
  fs::path shard_path(const std::string& split, size_t shard, const char* ending) const {
    std::array<char, 48> number{};
    std::snprintf(number.data(), number.size(), "-%06zu", shard);
    return folder_ / concat(options_.name, options_.name.empty() ? "" : "-", split, number.data(), ending);
  }

  /// Before the shard itself: a whole shard has its index.
  void write_indexes() const {
    const std::string text = concat("v1.2 ", samples_, "\n", lines_);
    if (options_.dali_index) write_published(shard_path(split_, shard_, ".idx"), text);
    if (options_.index_dir.empty()) return;
    make_folders(options_.index_dir / split_);
    write_published(options_.index_dir / split_ / concat("idx_", shard_, ".txt"), text);
  }

  std::string lines_;  // of the shard's index
  size_t samples_ = 0;
};

}  // namespace

std::unique_ptr<Writer> wds_writer(const fs::path& folder, const WriterOptions& options) {
  return std::make_unique<WdsWriter>(folder, options);
}

}  // namespace tessera::prepare
