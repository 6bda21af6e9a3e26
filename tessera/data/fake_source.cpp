// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/words.h"
#include "tessera/data/open_source.h"

namespace tessera::data {
namespace {

constexpr const char* kFakeSource = "data.open_fake";
constexpr int64_t kDefaultCount = 1280, kMostImages = 10'000'000'000;
constexpr int64_t kCells = 4;                 // a class is a pattern of 4 x 4 cells
constexpr int kNoise = 64;                    // levels of uniform noise, a power of two
constexpr uint64_t kPatternSeed = 0x7E55E7A;  // fixed: the classes look the same in every run

/// Image `index` is of class index % classes: the cells of its class plus noise of its own, all pure
/// functions of (split, index).
class FakeSource : public Source {
 public:
  FakeSource(int64_t count, const std::string& split, const SourceOptions& options)
      : count_(count), split_(split), options_(options), noise_key_(random_key(kPatternSeed, split)) {
    classes_.resize(static_cast<size_t>(options.fake_classes));
    for (size_t i = 0; i < classes_.size(); ++i) classes_[i] = std::to_string(i);
  }

  int64_t size() const override { return count_; }
  int64_t label(int64_t index) const override { return index % options_.fake_classes; }
  Stored load(int64_t index) const override {
    const int64_t side = options_.fake_image_size;
    Image image{side, side, options_.fake_channels, {}};
    image.pixels = noise(random_key(noise_key_, static_cast<uint64_t>(index)), side * side * image.channels);
    const uint64_t key = random_key(random_key(kPatternSeed, "pattern"), static_cast<uint64_t>(label(index)));
    std::vector<uint8_t> levels(static_cast<size_t>(side * image.channels));  // of one row
    for (int64_t y = 0; y < side; ++y) {
      if (y == 0 || y * kCells / side != (y - 1) * kCells / side)
        fill_levels(key, y * kCells / side, &levels);
      uint8_t* row = image.pixels.data() + static_cast<size_t>(y) * levels.size();
      for (size_t i = 0; i < levels.size(); ++i) row[i] = static_cast<uint8_t>(row[i] + levels[i]);
    }
    return {{}, std::move(image)};
  }
  std::string sample_name(int64_t index) const override { return concat("fake-", split_, "[", index, "]"); }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  static std::vector<uint8_t> noise(uint64_t key, int64_t count) {
    std::vector<uint8_t> bytes;
    bytes.reserve(static_cast<size_t>(count) + 16);
    for (uint64_t block = 0; bytes.size() < static_cast<size_t>(count); ++block) {
      for (const uint32_t word : philox(key, block)) {
        for (int shift = 0; shift < 32; shift += 8) bytes.push_back(word >> shift & (kNoise - 1));
      }
    }
    bytes.resize(static_cast<size_t>(count));
    return bytes;
  }

  /// One row of cells of a class; the levels leave room for the noise.
  void fill_levels(uint64_t key, int64_t cell_y, std::vector<uint8_t>* row) const {
    const int64_t channels = options_.fake_channels;
    for (int64_t i = 0; i < static_cast<int64_t>(row->size()); ++i) {
      const int64_t cell_x = i / channels * kCells / options_.fake_image_size;
      const int64_t element = (cell_y * kCells + cell_x) * channels + i % channels;
      (*row)[static_cast<size_t>(i)] =
          static_cast<uint8_t>(random_below(key, static_cast<uint64_t>(element), 256 - kNoise));
    }
  }

  const int64_t count_;
  const std::string split_;
  const SourceOptions options_;
  const uint64_t noise_key_;
  std::vector<std::string> classes_;
};

}  // namespace

std::unique_ptr<Source> open_fake(const std::string& count, const std::string& split,
                                  const SourceOptions& options) {
  int64_t images = kDefaultCount;
  if (!count.empty()) {
    images = parse_number<int64_t>(count).value_or(0);
    if (images < 1 || images > kMostImages) {
      user_error({.where = kFakeSource,
                  .problem = concat("data.source is fake:", count),
                  .expected = concat("fake:N with a number of images N from 1 to ", kMostImages)});
    }
  }
  if (options.fake_image_size < 1 || options.fake_classes < 1 ||
      (options.fake_channels != 1 && options.fake_channels != 3)) {
    user_error({.where = kFakeSource,
                .problem = concat("synthetic images have ", options.fake_image_size, " pixels, ",
                                  options.fake_classes, " classes and ", options.fake_channels, " channels"),
                .expected = "at least 1 pixel, 1 class and 1 or 3 channels"});
  }
  return std::make_unique<FakeSource>(images, split, options);
}

}  // namespace tessera::data
