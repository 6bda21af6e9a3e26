// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/index.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tessera/data/index_builder.h"
#include "tessera/data/index_cache.h"
#include "tests/data/folder_maker.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

IndexBuilder small_builder() {
  IndexBuilder builder, part;
  builder.set_files({"a.tar", "b.tar"});
  builder.set_classes({"cat", "dog"});
  builder.add({.name = "1.jpg", .label = 0, .offset = 512, .size = 7});
  builder.note("a note");
  part.add_broken({.name = "2.jpg", .file = 1}, "no label");
  part.add(
      {.name = std::string_view("3\0x", 3), .label = 1, .file = 1, .offset = uint64_t{1} << 40, .size = 9});
  const std::string window = "window";
  part.add_point(1, {100, 90, 3, 6}, std::as_bytes(std::span(window)));
  builder.append(std::move(part));
  return builder;
}

void expect_small(const SampleIndex& index) {
  ASSERT_EQ(index.size(), 3);
  EXPECT_EQ(index.files(), (std::vector<std::string>{"a.tar", "b.tar"}));
  EXPECT_EQ(index.classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(index.notes(), std::vector<std::string>{"a note"});
  EXPECT_EQ(index.name(0), "1.jpg");
  EXPECT_EQ(index.name(2), std::string_view("3\0x", 3));
  EXPECT_EQ(index.label(1), -1);
  EXPECT_EQ(index.problem(0), nullptr);
  ASSERT_NE(index.problem(1), nullptr);
  EXPECT_EQ(*index.problem(1), "no label");
  EXPECT_EQ(index.sample(2).offset, uint64_t{1} << 40);
  EXPECT_EQ(index.sample(2).file, 1U);
  EXPECT_EQ(index.sample(0).crc32, 0U);
  const auto [point, window] = index.restart_point(1, 5000);
  EXPECT_EQ(point.packed, 90U);
  EXPECT_EQ(window, "window");
  EXPECT_EQ(error_text([&] { index.restart_point(1, 99); }),
            "[data.index] the index of b.tar has no restart point before byte 99");
  EXPECT_EQ(error_text([&] { index.restart_point(0, 99); }),
            "[data.index] the index of a.tar has no restart point before byte 99");
}

TEST(SampleIndex, WrittenAndReadBack) {
  const IndexBuilder builder = small_builder();
  const std::string bytes = builder.finish("me");
  const auto in_memory = SampleIndex::parse(bytes, {nullptr, 0, builder.windows()});
  ASSERT_TRUE(in_memory);
  expect_small(*in_memory);
  const TemporaryFolder folder("tessera-index");
  const fs::path path = folder.path() / "x.index";
  write_file_atomic(path, bytes + builder.windows());
  const auto from_file = SampleIndex::read(path, "me");
  ASSERT_TRUE(from_file);
  expect_small(*from_file);
  EXPECT_FALSE(SampleIndex::read(path, "another"));
  EXPECT_FALSE(SampleIndex::read(folder.path() / "none", "me"));
  std::string damaged = bytes + builder.windows();
  damaged.back() = 'x';  // in the window, which is read when it is needed
  write_file_atomic(path, damaged);
  const auto half = SampleIndex::read(path, "me");
  ASSERT_TRUE(half);
  EXPECT_EQ(error_text([&] { half->restart_point(1, 5000); }),
            concat("[data.index] the index of b.tar is damaged at byte 5000; remove ", path.string()));
}

TEST(SampleIndex, EveryCutAndEveryFlippedByteIsNoticed) {
  const IndexBuilder builder = small_builder();
  const std::string bytes = builder.finish("me");
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(SampleIndex::parse(bytes.substr(0, size), {})) << size;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 4);
    EXPECT_FALSE(SampleIndex::parse(flipped, {})) << i;
  }
}

/// A folder of images with an index folder beside it.
class IndexFiles : public ::testing::Test {
 protected:
  IndexFiles() {
    write_image(data / "train" / "a" / "1.png", 1);
    write_image(data / "train" / "b" / "2.png", 2);
    options.index_dir = indexes.string();
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
  }
  IndexReport make() { return make_index("folder:" + data.string(), "train", indexes.string(), options); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(indexes))
      found.push_back(entry.path().filename().string());
    return found;
  }
  const TemporaryFolder temporary{"tessera-index"};
  const fs::path data = temporary.path() / "set", indexes = temporary.path() / "indexes";
  SourceOptions options;
  std::vector<std::string> warnings;
};

TEST_F(IndexFiles, MadeOnceReusedAndMadeAnewWhenTheDataChange) {
  const IndexReport first = make();
  EXPECT_TRUE(first.made);
  EXPECT_EQ(first.samples, 2);
  EXPECT_EQ(first.classes, 2);
  EXPECT_EQ(first.bytes, fs::file_size(first.file));
  EXPECT_EQ(names(), std::vector<std::string>{first.file.filename().string()})
      << "no lock and no temporary file";
  EXPECT_TRUE(first.file.filename().string().starts_with("folder-set-train-"));
  EXPECT_FALSE(make().made);
  write_image(data / "train" / "b" / "3.png", 3);
  const IndexReport second = make();
  EXPECT_TRUE(second.made);
  EXPECT_EQ(second.samples, 3);
  EXPECT_EQ(second.file, first.file);
  fs::remove(data / "train" / "a" / "1.png");
  EXPECT_EQ(open_source(data.string(), "train", options)->size(), 2);
  EXPECT_EQ(warnings, std::vector<std::string>{"[data.open_folder] class folder " +
                                               (data / "train" / "a").string() + " has no images"});
}

TEST_F(IndexFiles, DamagedAndForeignOnesAreMadeAnew) {
  const IndexReport first = make();
  const std::string sound = read_file(first.file);
  for (const std::string& bytes :
       {std::string("something else"), sound.substr(0, sound.size() / 2), sound + "x", std::string()}) {
    write_file_atomic(first.file, bytes);
    const IndexReport again = make();
    EXPECT_TRUE(again.made);
    EXPECT_EQ(again.samples, 2);
    EXPECT_EQ(read_file(first.file), sound);
  }
}

TEST_F(IndexFiles, WhereTheyLie) {
  const auto source = [&](const std::string& place) {
    options.index_dir = place;
    return open_source(data.string(), "train", options);
  };
  source("none");
  EXPECT_FALSE(fs::exists(indexes));
  source((indexes / "{split}").string());
  EXPECT_EQ(std::distance(fs::directory_iterator(indexes / "train"), fs::directory_iterator()), 1);
  source("beside");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(data)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1);
  EXPECT_FALSE(make_index(data.string(), "train", "beside", options).made) << "found beside the data";
}

TEST_F(IndexFiles, TheUsersCacheKeepsOnlyWhatTookTime) {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", (temporary.path() / "cache").c_str(), 1);
  options.index_dir = "";
  IndexRequest request{"folder", data, "train", "", {data / "train"}, {}};
  EXPECT_EQ(index_folder(request, options), temporary.path() / "cache" / "tessera" / "index");
  request.build = [](IndexBuilder& builder) {
    builder.set_files({"x"});
    builder.set_classes({"a"});
    builder.add({.name = "1", .label = 0});
  };
  EXPECT_TRUE(open_index(request, options).file.empty());
  const auto quick = request.build;
  request.build = [&](IndexBuilder& builder) {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    quick(builder);
  };
  const OpenedIndex slow = open_index(request, options);
  EXPECT_TRUE(fs::is_regular_file(slow.file));
  EXPECT_FALSE(open_index(request, options).made);
  if (before == nullptr) {
    ::unsetenv("XDG_CACHE_HOME");
  } else {
    ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  }
}

/// Equal size and time, other content: `touch -r`, and archives that are made with a fixed time.
TEST_F(IndexFiles, InTheUsersCacheContentWhoseTimeWasSetBackIsNoticed) {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", (temporary.path() / "cache").c_str(), 1);
  options.index_dir = "";
  const fs::path file = temporary.path() / "labels";
  IndexRequest request{"wds", temporary.path(), "train", "", {file}, {}};
  request.build = [&](IndexBuilder& builder) {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    builder.set_files({"labels"});
    builder.set_classes({"a", "b"});
    builder.add({.name = "1", .label = read_file(file) == "1" ? 1 : 0});
  };
  write_text(file, "0");
  EXPECT_EQ(open_index(request, options).index.label(0), 0);
  EXPECT_FALSE(open_index(request, options).made);
  const auto time = fs::last_write_time(file);
  write_text(file, "1");
  fs::last_write_time(file, time);
  EXPECT_EQ(open_index(request, options).index.label(0), 1);
  EXPECT_FALSE(open_index(request, options).made) << "once";
  if (before == nullptr) {
    ::unsetenv("XDG_CACHE_HOME");
  } else {
    ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  }
}

TEST_F(IndexFiles, AFolderThatCannotBeWrittenIsNamedAndTheRunGoesOn) {
  write_text(indexes, "a file where the folder should be");
  EXPECT_EQ(open_source(data.string(), "train", options)->size(), 2);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].starts_with("the index is made anew at every start: ")) << warnings[0];
  EXPECT_TRUE(warnings[0].ends_with(" (set data.index_dir)")) << warnings[0];
  warnings.clear();
  EXPECT_EQ(error_text([&] { make(); }),
            concat("[data.index] the index cannot be written: [file.create] cannot create ", indexes.string(),
                   ": Not a directory; choose another folder"));
  EXPECT_TRUE(warnings.empty()) << "an error and no warning beside it: " << warnings[0];
}

TEST_F(IndexFiles, APipeOfTheIndexsNameDoesNotHoldTheRunUp) {
  const fs::path file = make().file;
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0644), 0);
  EXPECT_EQ(open_source(data.string(), "train", options)->size(), 2);
  EXPECT_EQ(warnings,
            std::vector<std::string>{"the index is made anew at every start: [data.index] " + file.string() +
                                     " is not a regular file (set data.index_dir)"});
  EXPECT_EQ(error_text([&] { make(); }),
            concat("[data.index] the index cannot be written: [data.index] ", file.string(),
                   " is not a regular file; choose another folder"));
}

TEST_F(IndexFiles, OneProcessMakesItTheOthersWait) {
  fs::create_directories(indexes);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      IndexRequest request{"folder", data, "train", "", {data / "train"}, {}};
      request.build = [&](IndexBuilder& builder) {
        write_text(temporary.path() / ("built" + std::to_string(::getpid())), "");
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        builder.set_files({"x"});
        builder.set_classes({"a"});
        builder.add({.name = "1", .label = 0});
      };
      options.warn = {};
      ::_exit(open_index(request, options).index.size() == 1 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  int built = 0;
  for (const auto& entry : fs::directory_iterator(temporary.path())) {
    built += entry.path().filename().string().starts_with("built") ? 1 : 0;
  }
  EXPECT_EQ(built, 1);
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(IndexFiles, SourcesWithoutIndexSaySo) {
  const IndexReport report = make_index("fake:12", "train", indexes.string(), options);
  EXPECT_EQ(report.samples, 12);
  EXPECT_TRUE(report.file.empty());
  EXPECT_FALSE(fs::exists(indexes));
}

}  // namespace
}  // namespace tessera::data
