// SPDX-License-Identifier: Apache-2.0
// What opening and loading cost at size; prints what it measures. Label slow: it makes 300,000 files and
// samples.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/index.h"
#include "tessera/data/loader.h"
#include "tests/data/folder_maker.h"
#include "tests/data/tar_maker.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

class Timer {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

template <typename... Parts>
void say(const Parts&... parts) {
  std::printf("%s\n", concat(parts...).c_str());
}

std::string image_bytes(int64_t side) {
  const std::vector<uint8_t> pixels(static_cast<size_t>(side * side * 3), 90);
  const auto png = formats::encode_png(pixels.data(), side, side, 3);
  return {reinterpret_cast<const char*>(png.data()), png.size()};
}

/// Bytes that do not compress, like a JPEG's.
std::string noise(uint64_t key, size_t size) {
  std::string text;
  for (uint64_t block = 0; text.size() < size; ++block) {
    for (const uint32_t word : philox(key, block))
      text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  text.resize(size);
  return text;
}

TEST(AtSize, FolderOf200000Files) {
  constexpr int kClasses = 1000, kImages = 200;
  const TemporaryFolder temporary("tessera-at-size");
  const fs::path train = temporary.path() / "set" / "train";
  for (int c = 0; c < kClasses; ++c) {
    const fs::path folder = train / concat("n", 10'000'000 + c);
    fs::create_directories(folder);
    for (int i = 0; i < kImages; ++i) {
      const int fd = ::open((folder / concat(folder.filename().string(), "_", i, ".JPEG")).c_str(),
                            O_CREAT | O_WRONLY, 0644);
      ASSERT_GE(fd, 0);
      ::close(fd);
    }
  }
  const std::string spec = "folder:" + (temporary.path() / "set").string(),
                    indexes = (temporary.path() / "indexes").string();
  const IndexReport made = make_index(spec, "train", indexes, {});
  const IndexReport kept = make_index(spec, "train", indexes, {});
  EXPECT_TRUE(made.made);
  EXPECT_FALSE(kept.made);
  EXPECT_EQ(made.samples, kClasses * kImages);
  say("folder of ", made.samples, " files: ", made.seconds, " s without an index, ", kept.seconds,
      " s with it, ", made.bytes, " bytes");
  EXPECT_LT(made.seconds, 10.0);
  EXPECT_LT(kept.seconds, 2.0);
}

TEST(AtSize, ZipOf200000Members) {
  const TemporaryFolder temporary("tessera-at-size");
  write_text(temporary.path() / "make.py", R"(import zipfile
names = [f"n{i // 200:08d}/n{i // 200:08d}_{i}.JPEG" for i in range(200000)]
with zipfile.ZipFile("train.zip", "w") as archive:
    for name in names:
        archive.writestr(zipfile.ZipInfo(name), b"x")
open("train_map.txt", "w").writelines(f"{name}\t{i // 200}\n" for i, name in enumerate(names))
)");
  ASSERT_EQ(std::system(concat("cd ", temporary.path().string(), " && python3 make.py").c_str()), 0);
  const std::string spec = "zip:" + temporary.path().string(),
                    indexes = (temporary.path() / "indexes").string();
  const std::clock_t start = std::clock();
  const IndexReport made = make_index(spec, "train", indexes, {});
  const double cpu = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const IndexReport kept = make_index(spec, "train", indexes, {});
  EXPECT_EQ(made.samples, 200'000);
  EXPECT_EQ(made.classes, 1000);
  say("zip of ", made.samples, " members: ", made.seconds, " s (", cpu, " s of CPU) without an index, ",
      kept.seconds, " s with it, ", made.bytes, " bytes");
  EXPECT_LT(cpu, 5.0);
}

/// Shards whose images are whole PNGs, filled up to 110 KiB by holes: as large as real ones for who walks
/// through.
void write_sparse_shards(const fs::path& folder, int shards, int images) {
  constexpr uint64_t kImage = 110 * 1024;
  const std::string image = image_bytes(64);
  fs::create_directories(folder);
  for (int s = 0; s < shards; ++s) {
    const int fd =
        ::open((folder / concat("set-train-", 100'000 + s, ".tar")).c_str(), O_CREAT | O_WRONLY, 0644);
    ASSERT_GE(fd, 0);
    off_t at = 0;
    for (int i = 0; i < images; ++i) {
      const std::string start = tar_header(concat(i, ".png"), kImage) + image;
      const std::string label =
          tar_header(concat(i, ".cls"), 1) + std::to_string(i % 10) + std::string(511, '\0');
      ASSERT_EQ(::pwrite(fd, start.data(), start.size(), at), static_cast<ssize_t>(start.size()));
      ASSERT_EQ(::pwrite(fd, label.data(), label.size(), at + 512 + static_cast<off_t>(kImage)),
                static_cast<ssize_t>(label.size()));
      at += 512 + static_cast<off_t>(kImage) + 1024;
    }
    ASSERT_EQ(::ftruncate(fd, at + 1024), 0);
    ::close(fd);
  }
}

TEST(AtSize, FirstBatchOf1000Shards) {
  const TemporaryFolder temporary("tessera-at-size");
  write_sparse_shards(temporary.path() / "shards", 1000, 100);
  SourceOptions options;
  options.index_dir = (temporary.path() / "indexes").string();
  for (const char* index : {"without an index", "with it"}) {
    const Timer timer;
    const auto source = open_source(
        "wds:" + (temporary.path() / "shards" / "set-train-{100000..100999}.tar").string(), "train", options);
    const double opened = timer.seconds();
    TransformOptions transform;
    LoaderOptions loader;
    loader.batch = 128;
    TrainLoader batches(*source, transform, loader, 0);
    EXPECT_EQ(batches.next().size, 128);
    say("1,000 shards of 100 images, ", index, ": open after ", opened, " s, first batch after ",
        timer.seconds(), " s");
    EXPECT_EQ(source->size(), 100'000);
    EXPECT_LT(timer.seconds(), 10.0);
  }
}

/// Mean CPU seconds of load() in a random order, the system's share included.
double load_seconds(const Source& source) {
  const auto samples = static_cast<uint64_t>(source.size());
  const std::clock_t start = std::clock();
  for (uint64_t i = 0; i < samples; ++i) {
    EXPECT_FALSE(source.load(static_cast<int64_t>(random_below(5, i, samples))).file.empty());
  }
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / static_cast<double>(samples);
}

TEST(AtSize, LoadingFromEachForm) {
  constexpr int kImages = 1000;
  constexpr size_t kBytes = 110 * 1024;
  const TemporaryFolder temporary("tessera-at-size");
  const fs::path root = temporary.path();
  std::string tar;
  for (int i = 0; i < kImages; ++i) {
    const std::string content = noise(static_cast<uint64_t>(i), kBytes), name = concat(i, ".jpg");
    write_text(root / "set" / "train" / "a" / name, content);
    tar += tar_member(name, content) + tar_member(concat(i, ".cls"), "0");
  }
  write_text(root / "x.tar", tar + std::string(1024, '\0'));
  ASSERT_EQ(std::system(concat("cd ", root.string(),
                               " && gzip -k x.tar && cd set/train && python3 -m zipfile -c ../train.zip a && "
                               "for i in a/*; do printf '%s\\t0\\n' $i; done > ../train_map.txt")
                            .c_str()),
            0);
  SourceOptions options;
  options.index_dir = (root / "indexes").string();
  for (const std::string spec : {"folder:set", "zip:set", "wds:x.tar", "wds:x.tar.gz"}) {
    const Timer timer;
    const size_t colon = spec.find(':') + 1;
    const auto source =
        open_source(spec.substr(0, colon) + (root / spec.substr(colon)).string(), "train", options);
    const double opened = timer.seconds();
    ASSERT_EQ(source->size(), kImages);
    load_seconds(*source);
    say(spec, ": ", opened, " s to index, ", 1e6 * load_seconds(*source), " us of CPU to load 110 KiB");
  }
}

}  // namespace
}  // namespace tessera::data
