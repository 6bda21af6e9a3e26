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

  /// A class without samples gets its folder too: labels are places in the list of folders.
  void open(const Split& split) override {
    root_ = folder_ / split.name;
    for (const auto& name : class_folders(split.classes)) fs::create_directories(root_ / name);
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
