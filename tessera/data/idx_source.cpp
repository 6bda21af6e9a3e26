// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/open_source.h"
#include "tessera/formats/gzip.h"
#include "tessera/formats/idx.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIdxSource = "data.open_idx";
const std::vector<std::string> kFashion = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                           "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};

/// "train-images-idx3-ubyte", as well "train-images.idx3-ubyte"; unpacked wins over .gz.
std::optional<fs::path> find_idx(const FileSystem& files, const fs::path& folder, const std::string& stem,
                                 char rank) {
  for (const char* ending : {"", ".gz"}) {
    for (const char* separator : {"-", "."}) {
      const fs::path path = folder / concat(stem, separator, "idx", rank, "-ubyte", ending);
      if (files.exists(path)) return path;
    }
  }
  return std::nullopt;
}

std::optional<fs::path> find_images(const FileSystem& files, const fs::path& folder,
                                    const std::string& part) {
  const auto gray = find_idx(files, folder, part + "-images", '3');
  return gray ? gray : find_idx(files, folder, part + "-images", '4');
}

formats::Idx read_idx(const FileSystem& files, const fs::path& path) {
  return formats::parse_idx(formats::gunzip(files.read_whole(path), path.string()), path.string());
}

formats::Idx read_labels(const FileSystem& files, const fs::path& path) {
  formats::Idx labels = read_idx(files, path);
  if (labels.dims.size() != 1) {
    user_error({.where = kIdxSource,
                .problem = concat(path.string(), " has labels of ", labels.dims.size(), " dimensions"),
                .expected = "1 dimension"});
  }
  return labels;
}

int64_t largest_label(const formats::Idx& labels) {
  const auto values = labels.values();
  return values.empty() ? -1 : *std::max_element(values.begin(), values.end());
}

class IdxSource : public Source {
 public:
  IdxSource(const FileSystem& files, const fs::path& images, const fs::path& labels,
            std::vector<std::string> classes)
      : images_(read_idx(files, images)),
        labels_(read_labels(files, labels)),
        classes_(std::move(classes)),
        name_(images.filename().string()),
        file_(fs::absolute(images).string()) {
    const auto& dims = images_.dims;
    if (dims.size() != 3 && !(dims.size() == 4 && (dims[3] == 1 || dims[3] == 3))) {
      user_error({.where = kIdxSource,
                  .problem = concat(images.string(), " has images of ", dims.size(), " dimensions"),
                  .expected = "3 dimensions, or 4 with a last one of 1 or 3"});
    }
    if (dims[0] != labels_.dims[0]) {
      user_error(
          {.where = kIdxSource,
           .problem = concat(labels.string(), " has ", labels_.dims[0], " labels for ", dims[0], " images")});
    }
    if (dims[0] == 0 || dims[1] == 0 || dims[2] == 0) {
      user_error({.where = kIdxSource,
                  .problem = concat(images.string(), " has ", dims[0], " images of ", dims[1], " x ", dims[2],
                                    " pixels"),
                  .expected = "at least one image of at least one pixel"});
    }
    channels_ = dims.size() == 4 ? dims[3] : 1;
  }

  int64_t size() const override { return images_.dims[0]; }
  int64_t label(int64_t index) const override { return labels_.values()[static_cast<size_t>(index)]; }
  Stored load(int64_t index) const override {
    Image image{images_.dims[2], images_.dims[1], channels_, {}};
    const auto count = static_cast<size_t>(image.width * image.height * image.channels);
    const auto bytes = images_.values().subspan(static_cast<size_t>(index) * count, count);
    image.pixels.assign(bytes.begin(), bytes.end());
    return {{}, std::move(image)};
  }
  std::string sample_name(int64_t index) const override { return concat(name_, "[", index, "]"); }
  Location location(int64_t index) const override { return {file_, "", static_cast<uint64_t>(index)}; }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  formats::Idx images_, labels_;
  std::vector<std::string> classes_;
  std::string name_, file_;
  int64_t channels_ = 1;
};

/// Numbers up to the largest label of either part, so that both parts have the same classes; the known names
/// where the folder's name says that it is Fashion-MNIST.
std::vector<std::string> class_names(const FileSystem& files, const fs::path& folder) {
  int64_t largest = -1;
  for (const char* part : {"train", "t10k"}) {
    if (const auto path = find_idx(files, folder, concat(part, "-labels"), '1')) {
      largest = std::max(largest, largest_label(read_labels(files, *path)));
    }
  }
  const std::string name = lower(fs::absolute(folder).lexically_normal().string());
  if (name.find("fashion") != std::string::npos && largest + 1 == static_cast<int64_t>(kFashion.size())) {
    return kFashion;
  }
  std::vector<std::string> names;
  for (int64_t label = 0; label <= largest; ++label) names.push_back(std::to_string(label));
  return names;
}

}  // namespace

bool holds_idx_files(const fs::path& folder, const SourceOptions& options) {
  const FileSystem& files = *options.files;
  return find_images(files, folder, "train").has_value() || find_images(files, folder, "t10k").has_value();
}

std::unique_ptr<Source> open_idx(const fs::path& folder, const std::string& split,
                                 const SourceOptions& options) {
  static const std::vector<std::string> kSplits = {"train", "val", "validation", "test"};
  if (std::find(kSplits.begin(), kSplits.end(), split) == kSplits.end()) {
    user_error({.where = kIdxSource,
                .problem = concat("the MNIST family has no split '", split, "'"),
                .expected = "train, val or test"});
  }
  const std::string part = split == "train" ? "train" : "t10k";
  const FileSystem& files = *options.files;
  const auto images = find_images(files, folder, part),
             labels = find_idx(files, folder, part + "-labels", '1');
  if (!images || !labels) {
    user_error(
        {.where = kIdxSource,
         .problem = concat(folder.string(), " has no file ", part,
                           images ? "-labels-idx1-ubyte" : "-images-idx3-ubyte", " and none with .gz")});
  }
  return std::make_unique<IdxSource>(files, *images, *labels, class_names(files, folder));
}

}  // namespace tessera::data
