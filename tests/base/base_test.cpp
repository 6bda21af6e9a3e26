// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <vector>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/interpolated_quantile.h"
#include "tessera/base/location.h"
#include "tessera/base/median.h"
#include "tessera/base/one_line.h"
#include "tessera/base/output_file.h"
#include "tessera/base/random.h"
#include "tessera/base/steady_mean.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tests/error_text.h"

namespace tessera {
namespace {

TEST(ResultFolder, LeavesNoEmptyFolderBehind) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder("tessera-result");
  fs::create_directory(folder.path() / "there");
  for (const char* name : {"there", "there/new", "a/b/c", "a/b/c/"}) {
    { const ResultFolder made(folder.path() / name); }
    EXPECT_FALSE(fs::exists(folder.path() / "a")) << name;
    EXPECT_TRUE(fs::is_empty(folder.path() / "there")) << name;
  }
  {
    const ResultFolder made(folder.path() / "a/b");
    write_file_atomic(folder.path() / "a/file", "");
  }
  EXPECT_TRUE(fs::exists(folder.path() / "a/file"));
  EXPECT_FALSE(fs::exists(folder.path() / "a/b"));
  EXPECT_TRUE(error_text([&] {
                const ResultFolder made(folder.path() / "a/file/b");
              }).starts_with("[file.create] cannot create "));
}

TEST(LockedFile, IsComparedWithWhatItsPathNames) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder("tessera-lock");
  const fs::path path = folder.path() / "run/.lock";
  fs::create_directory(path.parent_path());
  const auto lock = FileLock::try_take(path);
  ASSERT_TRUE(lock);
  const LockedFile file = lock->file();
  EXPECT_TRUE(file.is_in_place());
  fs::rename(folder.path() / "run", folder.path() / "moved");
  EXPECT_FALSE(file.is_in_place());
  fs::create_directory(path.parent_path());
  const auto other = FileLock::try_take(path);
  ASSERT_TRUE(other) << "a different file";
  EXPECT_FALSE(file.is_in_place());
  EXPECT_TRUE(other->file().is_in_place());
  fs::remove_all(path.parent_path());
  EXPECT_FALSE(other->file().is_in_place());
}

TEST(UserError, JoinsTheGivenParts) {
  const auto text = [](const ErrorParts& parts) { return error_text([&] { user_error(parts); }); };
  EXPECT_EQ(text({"recipe.parse", "train.batch is 30", "a multiple of the 4 ranks", "set train.batch to 32"}),
            "[recipe.parse] train.batch is 30: expected a multiple of the 4 ranks; set train.batch to 32");
  EXPECT_EQ(text({"data.open", "no such folder: 'x'", "", "set data.source"}),
            "[data.open] no such folder: 'x'; set data.source");
  EXPECT_EQ(text({"data.open", "a/b.tar is cut short", "512 bytes", ""}),
            "[data.open] a/b.tar is cut short: expected 512 bytes");
}

TEST(WithPlace, PlaceFollowsTheProblem) {
  EXPECT_EQ(with_location("[a.b] x is 3", "line 1"), "[a.b] x is 3 (line 1)");
  EXPECT_EQ(with_location("[a.b] x is 3: expected 4; set it", "line 1"),
            "[a.b] x is 3 (line 1): expected 4; set it");
  EXPECT_EQ(with_location("[a.b] x is 3; set it", "line 1"), "[a.b] x is 3 (line 1); set it");
}

// Known answers of Philox4x32-10 (Random123's kat_vectors): zero counter, zero key.
TEST(Random, PhiloxKnownAnswer) {
  const auto words = philox(0, 0);
  EXPECT_EQ(words[0], 0x6627e8d5U);
  EXPECT_EQ(words[1], 0xe169c58dU);
  EXPECT_EQ(words[2], 0xbc57ac4cU);
  EXPECT_EQ(words[3], 0x9b00dbd8U);
}

TEST(Random, PiecesEqualTheWhole) {
  for (const uint64_t begin : {0ULL, 1ULL, 3ULL, 17ULL}) {
    std::vector<float> whole(101), part(50);
    fill_normal(7, 0, whole, 1.0F, 2.0F, 2.0F);
    fill_normal(7, begin, part, 1.0F, 2.0F, 2.0F);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[begin + i]);
    fill_uniform(7, 0, whole);
    fill_uniform(7, begin, part);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[begin + i]);
  }
}

TEST(Random, MomentsAndRange) {
  std::vector<float> values(1 << 16);
  fill_normal(random_key(3, "w"), 0, values, 0.0F, 1.0F, 2.0F);
  double sum = 0, squares = 0;
  for (const float v : values) {
    ASSERT_LE(std::abs(v), 2.0F);
    sum += v;
    squares += double{v} * v;
  }
  EXPECT_NEAR(sum / values.size(), 0.0, 0.02);
  EXPECT_NEAR(squares / values.size(), 0.92, 0.02);  // variance of a clamped normal
  std::vector<int> counts(10);
  for (uint64_t i = 0; i < 10000; ++i) ++counts.at(random_below(5, i, 10));
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Random, KeysDiffer) {
  EXPECT_NE(random_key(0, "a"), random_key(0, "b"));
  EXPECT_NE(random_key(0, "a"), random_key(1, "a"));
  EXPECT_NE(random_key(uint64_t{5}, uint64_t{0}), random_key(uint64_t{5}, uint64_t{1}));
}

TEST(File, AtomicWriteLeavesNothingBeside) {
  const TemporaryFolder folder("tessera-base");
  const auto path = folder.path() / "a.txt";
  write_file_atomic(path, "one");
  write_file_atomic(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// A process writes beside the file and ends as by a kill; the next write finds what it left.
TEST(File, WhatAKilledProcessLeftGoesWithTheNextWrite) {
  const TemporaryFolder folder("tessera-base");
  const auto path = folder.path() / "a.txt";
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder.path()), {}); };
  std::ofstream(folder.path() / "a.txt.tmp-notes") << "of somebody";
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(OutputFile(path).write_to()) << "a part";
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(files(), 2);
  const OutputFile open(path);  // of a process that lives
  std::ofstream(open.write_to()) << "going on";
  EXPECT_EQ(files(), 2) << "the killed one's is gone";
  const OutputFile another(path);
  EXPECT_EQ(files(), 2) << "the living one's stays";
  open.commit();
  EXPECT_EQ(read_file(path), "going on");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "a.txt.tmp-notes"));
}

// What the test makes itself: device nodes and pipes of the machine are nobody's to try things on.
struct OutputNode : ::testing::Test {
  const TemporaryFolder folder{"tessera-base"};
  const std::filesystem::path node = folder.path() / "node";
  std::string error() const {
    return error_text([&] { write_file_atomic(node, "content"); });
  }
};

TEST_F(OutputNode, ALinkStaysAndLeadsToTheNewContent) {
  const auto target = folder.path() / "deep" / "target";
  std::filesystem::create_directory(folder.path() / "deep");
  std::filesystem::create_symlink("deep/step", node);
  std::filesystem::create_symlink("target", folder.path() / "deep" / "step");
  for (const char* content : {"made", "replaced"}) {
    write_file_atomic(node, content);
    EXPECT_TRUE(std::filesystem::is_symlink(std::filesystem::symlink_status(node)));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(target)));
    EXPECT_EQ(read_file(target), content);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path() / "deep"), {}), 2);
  std::filesystem::remove(target);
  std::filesystem::create_symlink("step", target);
  EXPECT_EQ(error(), "[file.write] cannot write " + node.string() + ": Too many levels of symbolic links");
}

TEST_F(OutputNode, APipeIsWrittenToAsItIs) {
  ASSERT_EQ(::mkfifo(node.c_str(), 0600), 0);
  const int reader = ::open(node.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_file_atomic(node, "content");
  std::string got(16, '\0');
  got.resize(static_cast<size_t>(std::max<ssize_t>(::read(reader, got.data(), got.size()), 0)));
  ::close(reader);
  EXPECT_EQ(got, "content");
  EXPECT_TRUE(std::filesystem::is_fifo(node));
}

TEST_F(OutputNode, ADeviceIsWrittenToAsItIs) {
  if (::mknod(node.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) GTEST_SKIP() << "making a device needs root";
  write_file_atomic(node, "content");  // a second /dev/null
  EXPECT_TRUE(std::filesystem::is_character_file(node));
  ::unlink(node.c_str());
  ASSERT_EQ(::mknod(node.c_str(), S_IFCHR | 0600, makedev(1, 7)), 0);  // a second /dev/full
  EXPECT_EQ(error(), "[file.write] cannot write " + node.string() +
                         ": No space left on device; free some space or choose another folder");
  EXPECT_TRUE(std::filesystem::is_character_file(node));
}

TEST_F(OutputNode, AFolderIsRefused) {
  std::filesystem::create_directory(node);
  EXPECT_EQ(error(), "[file.write] cannot write " + node.string() + ": Is a directory");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST_F(OutputNode, AFolderThatIsNotThereIsNamedAsGiven) {
  EXPECT_EQ(error_text([&] { write_file_atomic(node / "", "content"); }),
            concat("[file.write] cannot write ", node.string(),
                   "/: it names a folder that does not exist; name a file"));
}

TEST_F(OutputNode, APipeIsNoFileToRead) {
  ASSERT_EQ(::mkfifo(node.c_str(), 0600), 0);
  EXPECT_EQ(error_text([&] { read_file(node); }),
            concat("[file.open] ", node.string(), " is not a regular file"));
}

TEST(File, ErrorsNameThePath) {
  try {
    read_file("/nonexistent/file");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/file"), std::string::npos);
  }
  const TemporaryFolder folder("tessera-base");
  write_file_atomic(folder.path() / "short", "abc");
  const FileReader reader(folder.path() / "short");
  std::vector<std::byte> bytes(4);
  EXPECT_THROW(reader.read(0, bytes), UserError);
}

TEST(Text, NearestNamesTypos) {
  const std::vector<std::string> keys = {"train.batch", "train.epochs", "model.width"};
  EXPECT_EQ(nearest("train.bacth", keys), "train.batch");
  EXPECT_EQ(nearest("zzz", keys), "");
}

TEST(Text, Numbers) {
  EXPECT_EQ(human_count(86567656), "86,567,656");
  EXPECT_EQ(human_count(-1000), "-1,000");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(4.0 * 1024 * 1024 * 1024), "4.00 GiB");
  EXPECT_EQ(human_seconds(187), "3 min 07 s");
}

TEST(Words, ReplacedOnesAreNotLookedAtAgain) {
  std::string text = "{x}-{x}.tar";
  replace_all(text, "{x}", "a{x}");
  EXPECT_EQ(text, "a{x}-a{x}.tar");
  replace_all(text, "{y}", "b");
  EXPECT_EQ(text, "a{x}-a{x}.tar");
}

TEST(OneLine, WritesOutWhatATerminalWouldObey) {
  EXPECT_EQ(one_line("a\nb\x1b[2J\x7f caf\xc3\xa9 \t."), "a\\nb\\x1b[2J\\x7f caf\xc3\xa9 \\x09.");
  EXPECT_EQ(one_line(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(OneLine, WritesOutWhatIsNoUtf8) {
  const std::string good = "\xc2\xa0 \xe4\xb8\xad \xf0\x9f\x98\x80 \xef\xbf\xbf";
  EXPECT_EQ(one_line(good), good);
  EXPECT_EQ(one_line("\xff \xe4\xb8"), "\\xff \\xe4\\xb8");  // no character; one cut off
  EXPECT_EQ(one_line("\xc2\x9b"
                     "2J"),
            "\\xc2\\x9b"
            "2J");                                                             // CSI, which terminals obey
  EXPECT_EQ(one_line("\xc0\xaf \xed\xa0\x80"), "\\xc0\\xaf \\xed\\xa0\\x80");  // too long; a surrogate
}

TEST(OneLine, LeavesOutTheMiddleOfWhatIsLong) {
  const std::string whole(kMostLineBytes, 'x');
  EXPECT_EQ(one_line(whole), whole);
  const std::string line = one_line(concat("first ", std::string(5'000'000, '\n'), " last"));
  EXPECT_LT(line.size(), 2 * kMostLineBytes + 100);
  EXPECT_TRUE(line.starts_with("first \\n")) << line;
  EXPECT_TRUE(line.ends_with("\\n last")) << line;
  EXPECT_NE(line.find(" ... (4,995,915 bytes left out) ... "), std::string::npos) << line;
}

TEST(Median, IsTheMiddleOrBetweenTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 10}), 3);
}

TEST(InterpolatedQuantile, EqualsNumpys) {
  EXPECT_EQ(interpolated_quantile({5}, 0.25), 5);
  EXPECT_EQ(interpolated_quantile({7, 1, 2, 2}, 0.25), 1.75);
  EXPECT_EQ(interpolated_quantile({7, 1, 2, 2}, 0.75), 3.25);
  EXPECT_EQ(interpolated_quantile({7, 1, 2, 2}, 0), 1);
  EXPECT_EQ(interpolated_quantile({7, 1, 2, 2}, 1), 7);
}

TEST(SteadyMean, CountsAPauseAsFiveTimesTheMedian) {
  EXPECT_EQ(steady_mean({2}), 2);
  EXPECT_EQ(steady_mean({1, 2, 2, 7}), 3);
  EXPECT_EQ(steady_mean({1, 2, 2, 100, 5}), (1 + 2 + 2 + 10 + 5) / 5.0);
}

TEST(SteadyMean, CountsAnInterruptionAsTheOuterFence) {
  EXPECT_EQ(steady_mean({60, 62, 60, 61, 100}), (60 + 62 + 60 + 61 + 68) / 5.0);  // quartiles 60 and 62
  EXPECT_EQ(steady_mean({1, 1, 1, 3, 3, 3}), 2) << "values of two sizes: nothing lies outside";
}

TEST(Checksum, PiecesEqualTheWhole) {
  const std::string text = "the quick brown fox";
  Checksum whole, pieces;
  whole.update(std::as_bytes(std::span(text)));
  pieces.update(std::as_bytes(std::span(text).subspan(0, 5)));
  pieces.update(std::as_bytes(std::span(text).subspan(5)));
  EXPECT_EQ(whole.hex(), pieces.hex());
}

TEST(Check, NamesExpressionAndValues) {
  try {
    TESSERA_CHECK_EQ(1 + 1, 3);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("2 against 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
