// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/error.h"
#include "tessera/prepare/naming.h"
#include "tessera/prepare/partial_file.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

class FolderWriter : public Writer {
 public:
  explicit FolderWriter(fs::path folder) : folder_(std::move(folder)) {}

  Block frame(Sample sample) const override {
    Block block;
    block.bytes = std::move(sample.file);
    block.image_size = block.bytes.size();
    block.sample = std::move(sample);
    return block;
  }

  /// The names are the samples', which only they know: their number and size must be there.
  void check(const Split& split, bool) const override {
    int64_t samples = 0, files = 0;
    uint64_t bytes = 0, found = 0;
    for (const SealedPart& part : split.parts) {
      samples += part.samples;
      bytes += part.bytes;
    }
    if (samples == 0) return;
    std::error_code error;
    const fs::path root = folder_ / split.name;
    for (fs::recursive_directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
      if (!at->is_regular_file(error)) continue;
      ++files;
      found += at->file_size(error);
    }
    if (!error && files >= samples && found >= bytes) return;
    user_error({.where = "prepare.resume",
                .problem = concat(root.string(), " has ", files, " files of ", found, " bytes in all"),
                .expected =
                    concat("at least ", samples, " files of ", bytes, " bytes, as an earlier run wrote them"),
                .hint = "put back what is missing, or empty the folder and start again"});
  }

  /// A class without samples gets its folder too: labels are places in the list of folders.
  void open(const Split& split) override {
    root_ = folder_ / split.name;
    for (const auto& name : class_folders(split.classes)) make_folders(root_ / name);
  }

  void append(const Block& block) override { write_unsynced(root_ / block.sample.path, block.bytes); }
  void seal() override { sync_file_system(root_); }
  void close() override {}
  void finish(const std::vector<Split>&) override {}

 private:
  fs::path folder_, root_;
};

}  // namespace

std::unique_ptr<Writer> folder_writer(const fs::path& folder) {
  return std::make_unique<FolderWriter>(folder);
}

}  // namespace tessera::prepare
