// SPDX-License-Identifier: Apache-2.0
// CIFAR-10 and CIFAR-100, binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of one or two
// label bytes and 32 x 32 pixels in three planes. Held in memory as they are: 31 MB a batch of CIFAR-10.
#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/class_names.h"
#include "tessera/data/open_source.h"
#include "tessera/formats/gzip_stream.h"
#include "tessera/formats/tar.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kCifarSource = "data.open_cifar";
constexpr int64_t kSide = 32, kPixels = kSide * kSide, kImage = 3 * kPixels;
constexpr uint64_t kMaxFile = uint64_t{1} << 30;

/// One of the two data sets: its files and the bytes before each image. Of CIFAR-100's two labels the fine
/// one counts.
struct Family {
  const char* name;
  std::vector<std::string> train, test;
  std::string class_file;
  int64_t label_bytes, classes;
};

const Family kFamilies[] = {
    {"CIFAR-10",
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
     {"test_batch.bin"},
     "batches.meta.txt",
     1,
     10},
    {"CIFAR-100", {"train.bin"}, {"test.bin"}, "fine_label_names.txt", 2, 100}};

/// Contents of the .bin and .txt files by their names without folders.
using Files = std::map<std::string, std::string>;

bool is_wanted(const fs::path& name) { return name.extension() == ".bin" || name.extension() == ".txt"; }

Files read_archive(const FileSystem& where, const fs::path& path) {
  const auto opened = where.open(path);
  const ByteSource& file = *opened;
  std::unique_ptr<formats::ByteStream> stream;
  if (formats::is_gzip_file(file)) {
    stream = std::make_unique<formats::GzipStream>(file, kMaxFile, formats::GzipStream::OnPoint());
  } else {
    stream = std::make_unique<formats::FileStream>(file);
  }
  formats::TarReader reader(*stream, path.string());
  Files files;
  while (auto member = reader.next()) {
    if (is_wanted(member->name)) files[fs::path(member->name).filename().string()] = reader.content(kMaxFile);
  }
  return files;
}

Files read_folder(const FileSystem& where, const fs::path& folder) {
  Files files;
  std::error_code error;
  for (const FolderEntry& entry : where.list(folder, error)) {
    if (is_wanted(entry.name)) files[entry.name] = where.read_whole(folder / entry.name);
  }
  if (error)
    user_error({.where = kCifarSource,
                .problem = concat("cannot read folder ", folder.string(), ": ", error.message())});
  return files;
}

/// The path itself, or the folder or archive in it that carries the usual name.
Files read_files(const FileSystem& where, const fs::path& path) {
  if (!where.exists(path))
    user_error({.where = kCifarSource,
                .problem = concat(path.string(), " does not exist"),
                .expected = "a folder or an archive"});
  if (!where.is_folder(path)) return read_archive(where, path);
  for (const char* name : {"cifar-10-batches-bin", "cifar-100-binary"}) {
    if (where.is_folder(path / name)) return read_folder(where, path / name);
  }
  for (const char* name : {"cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"}) {
    if (where.exists(path / name)) return read_archive(where, path / name);
  }
  return read_folder(where, path);
}

/// What a folder without .bin files holds instead: the first name, which says most.
std::string what_is_there(const FileSystem& where, const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (FolderEntry& entry : where.list(folder, ignored)) names.push_back(std::move(entry.name));
  if (names.empty()) return "no .bin file";
  const auto archive = std::find_if(names.begin(), names.end(),
                                    [](const auto& name) { return name.find(".tar") != std::string::npos; });
  const std::string& name = archive == names.end() ? *std::min_element(names.begin(), names.end()) : *archive;
  return concat(
      "no .bin file, but ", escape(name),
      archive == names.end() ? "" : concat(" (cifar:", (folder / name).string(), " opens an archive)"));
}

class CifarSource : public Source {
 public:
  CifarSource(const fs::path& path, const Family& family, std::vector<std::string> names,
              std::vector<std::string> batches, std::vector<std::string> classes)
      : path_(fs::absolute(path).string()),
        record_(family.label_bytes + kImage),
        names_(std::move(names)),
        batches_(std::move(batches)),
        classes_(std::move(classes)) {
    int64_t images = 0;
    for (const auto& batch : batches_) {
      images += static_cast<int64_t>(batch.size()) / record_;
      ends_.push_back(images);
    }
  }
  int64_t size() const override { return ends_.back(); }
  int64_t label(int64_t i) const override { return static_cast<uint8_t>(pixels(i)[-1]); }
  Stored load(int64_t i) const override {
    Image image{kSide, kSide, 3, std::vector<uint8_t>(kImage)};
    const char* planes = pixels(i);
    for (size_t p = 0; p < kPixels; ++p) {
      for (size_t c = 0; c < 3; ++c) image.pixels[3 * p + c] = static_cast<uint8_t>(planes[c * kPixels + p]);
    }
    return {{}, std::move(image)};
  }
  std::string sample_name(int64_t i) const override {
    const auto [batch, record] = place(i);
    return concat(names_[batch], "[", record, "]");
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  Location location(int64_t i) const override {
    const auto [batch, record] = place(i);
    return {path_, names_[batch], static_cast<uint64_t>(record)};
  }

 private:
  std::pair<size_t, int64_t> place(int64_t i) const {
    const auto batch = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return {batch, i - (batch == 0 ? 0 : ends_[batch - 1])};
  }
  /// The label, or the fine one of two, stands right before them.
  const char* pixels(int64_t i) const {
    const auto [batch, record] = place(i);
    return batches_[batch].data() + (record + 1) * record_ - kImage;
  }

  const std::string path_;
  const int64_t record_;
  std::vector<std::string> names_, batches_, classes_;
  std::vector<int64_t> ends_;
};

/// The batches of a split, checked: whole records, labels that are classes.
std::vector<std::string> take_batches(const Family& family, const std::vector<std::string>& names,
                                      Files& files, const fs::path& path) {
  std::vector<std::string> batches;
  const int64_t record = family.label_bytes + kImage;
  for (const auto& name : names) {
    const auto found = files.find(name);
    if (found == files.end())
      user_error({.where = kCifarSource,
                  .problem = concat(path.string(), " has no file ", name, " of ", family.name)});
    const auto bytes = static_cast<int64_t>(found->second.size());
    if (bytes == 0 || bytes % record != 0) {
      user_error({.where = kCifarSource,
                  .problem = concat(name, " in ", path.string(), " is cut off: it has ", bytes, " bytes"),
                  .expected = concat("records of ", record, " bytes")});
    }
    for (int64_t at = family.label_bytes - 1; at < bytes; at += record) {
      const auto label = static_cast<uint8_t>(found->second[static_cast<size_t>(at)]);
      if (label < family.classes) continue;
      user_error({.where = kCifarSource,
                  .problem = concat(name, " in ", path.string(), " has the label ", int{label}, " in record ",
                                    at / record),
                  .expected = concat("labels below ", family.classes)});
    }
    batches.push_back(std::move(found->second));
  }
  return batches;
}

}  // namespace

std::unique_ptr<Source> open_cifar(const fs::path& path, const std::string& split,
                                   const SourceOptions& options) {
  static const std::vector<std::string> kSplits = {"train", "val", "validation", "test"};
  if (std::find(kSplits.begin(), kSplits.end(), split) == kSplits.end()) {
    user_error({.where = kCifarSource,
                .problem = concat("CIFAR has no split '", split, "'"),
                .expected = "train, val or test"});
  }
  Files files = read_files(*options.files, path);
  for (const auto& family : kFamilies) {
    if (!files.contains(family.train[0]) && !files.contains(family.test[0])) continue;
    const auto& names = split == "train" ? family.train : family.test;
    auto batches = take_batches(family, names, files, path);
    std::vector<std::string> classes;
    if (files.contains(family.class_file))
      classes = parse_class_names(files[family.class_file], family.class_file);
    if (static_cast<int64_t>(classes.size()) != family.classes) {
      classes.clear();
      for (int64_t label = 0; label < family.classes; ++label) classes.push_back(std::to_string(label));
    }
    return std::make_unique<CifarSource>(path, family, names, std::move(batches), std::move(classes));
  }
  user_error({.where = kCifarSource,
              .problem = concat(path.string(), " is not CIFAR: it has ",
                                files.empty() ? what_is_there(*options.files, path) : files.begin()->first),
              .expected = "data_batch_1.bin (CIFAR-10) or train.bin (CIFAR-100)"});
}

}  // namespace tessera::data
