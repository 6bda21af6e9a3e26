// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/pack.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/error_text.h"
#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {
namespace fs = std::filesystem;

std::unique_ptr<data::Source> open_small(const std::string& split) {
  return std::make_unique<MemorySource>(small_source(split, split == "train" ? 60 : 7));
}

PackOptions small_options(Form form, int workers = 2) {
  PackOptions options;
  options.form = form;
  options.workers = workers;
  options.max_bytes = 20'000;
  options.writer.name = form == Form::kTfrecord ? "small" : "";
  return options;
}

class Forms : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(All, Forms,
                         ::testing::Values(Form::kFolder, Form::kWds, Form::kZip, Form::kTfrecord),
                         [](const auto& info) { return form_name(info.param); });

TEST_P(Forms, TheOutputDoesNotDependOnTheWorkers) {
  const TemporaryFolder one("tessera-pack"), five("tessera-pack");
  PackOptions options = small_options(GetParam(), 1);
  options.shuffle = 7;
  const PackResult result = pack(open_small, "small", one.path(), options);
  EXPECT_FALSE(result.was_done);
  options.workers = 5;
  pack(open_small, "small", five.path(), options);
  const auto files = files_of(one.path());
  EXPECT_GE(files.size(), GetParam() == Form::kZip ? 5U : 9U);
  EXPECT_EQ(files, files_of(five.path()));
  // The same command once more finds all done, and touches nothing.
  EXPECT_TRUE(pack(open_small, "small", five.path(), options).was_done);
  EXPECT_EQ(files, files_of(five.path()));
  options.shuffle.reset();
  const TemporaryFolder in_order("tessera-pack");
  pack(open_small, "small", in_order.path(), options);
  EXPECT_EQ(files == files_of(in_order.path()), GetParam() == Form::kFolder) << "a folder has no order";
}

/// Loads so slowly that a kill finds the run anywhere.
class SlowSource : public MemorySource {
 public:
  explicit SlowSource(MemorySource source) : MemorySource(std::move(source)) {}
  data::Stored load(int64_t index) const override {
    ::usleep(150);
    return MemorySource::load(index);
  }
};

TEST_P(Forms, AKilledRunGoesOn) {
  const TemporaryFolder whole("tessera-pack"), killed("tessera-pack");
  const PackOptions options = small_options(GetParam());
  pack(open_small, "small", whole.path(), options);
  std::mt19937 random(17);
  int kills = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      pack(
          [](const std::string& split) {
            return std::make_unique<SlowSource>(small_source(split, split == "train" ? 60 : 7));
          },
          "small", killed.path(), options);
      ::_exit(0);
    }
    ::usleep(random() % (2000 + static_cast<unsigned>(round) * 5000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++kills;
  }
  EXPECT_GT(kills, 0);
  EXPECT_EQ(files_of(whole.path()), files_of(killed.path())) << "after " << kills << " kills";
}

/// The largest file below the folder, but for the journal: images, never a list of classes.
fs::path largest_file(const fs::path& folder) {
  std::string largest;
  size_t most = 0;
  for (const auto& [name, content] : files_of(folder)) {
    if (content.size() <= most) continue;
    most = content.size();
    largest = name;
  }
  return folder / largest;
}

TEST_P(Forms, WhatAnEarlierRunWroteIsLookedAtBeforeItCounts) {
  const TemporaryFolder folder("tessera-pack");
  const PackOptions options = small_options(GetParam());
  pack(open_small, "small", folder.path(), options);
  const fs::path file = largest_file(folder.path());
  const std::string content = read_file(file);
  const bool is_folder = GetParam() == Form::kFolder;
  const std::string named = is_folder ? file.parent_path().parent_path().string() : file.string();
  const auto refused = [&] {
    const std::string error = error_text([&] { pack(open_small, "small", folder.path(), options); });
    EXPECT_NE(error.find(named), std::string::npos) << error;
    EXPECT_TRUE(error.starts_with("[")) << error;
    return error;
  };
  fs::remove(file);
  refused();
  write_file_atomic(file, content.substr(0, content.size() - 1));
  const std::string cut = refused();
  if (GetParam() == Form::kWds || GetParam() == Form::kTfrecord) {
    EXPECT_EQ(cut,
              concat("[prepare.resume] ", file.string(), " has ", content.size() - 1, " bytes: expected ",
                     content.size(),
                     " bytes, as an earlier run wrote it; put it back, or empty the folder and start again"));
  }
  write_file_atomic(file, content);
  EXPECT_TRUE(pack(open_small, "small", folder.path(), options).was_done);
}

TEST_P(Forms, ARunDoesNotGoOnAfterAPartThatIsGone) {
  if (GetParam() == Form::kZip) GTEST_SKIP() << "one file, whose length is looked at where it goes on";
  const TemporaryFolder folder("tessera-pack");
  const PackOptions options = small_options(GetParam(), 1);
  class Torn : public MemorySource {  // its last image cannot be read: the run ends early
   public:
    explicit Torn(MemorySource source) : MemorySource(std::move(source)) {}
    data::Stored load(int64_t index) const override {
      if (index == size() - 1) user_error({.where = "test.load", .problem = "the disk went away"});
      return MemorySource::load(index);
    }
  };
  const auto torn = [](const std::string& split) {
    return std::make_unique<Torn>(small_source(split, split == "train" ? 60 : 7));
  };
  EXPECT_NE(
      error_text([&] { pack(torn, "small", folder.path(), options); }).find("[test.load] the disk went away"),
      std::string::npos);
  if (GetParam() == Form::kFolder) {  // what is not sealed lies there too, and does not count
    fs::remove_all(folder.path() / "train" / "cat");
  } else {
    fs::remove(largest_file(folder.path()));
  }
  const std::string error = error_text([&] { pack(open_small, "small", folder.path(), options); });
  EXPECT_TRUE(error.starts_with("[prepare.resume] ")) << error;
}

TEST_P(Forms, AFullDiskSaysSoAndTheRunGoesOnLater) {
  const TemporaryFolder whole("tessera-pack"), full("tessera-pack");
  PackOptions options = small_options(GetParam(), 1);
  options.max_bytes = 0;  // one shard a split, so that a limit on a file's size stops it
  pack(open_small, "small", whole.path(), options);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2000, 2000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text = error_text([&] { pack(open_small, "small", full.path(), options); });
    const bool right =
        text.starts_with("[prepare.write] cannot write " + full.path().string()) &&
        text.ends_with("; free some space, then repeat the same command: it continues from here");
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  pack(open_small, "small", full.path(), options);
  EXPECT_EQ(files_of(whole.path()), files_of(full.path()));
}

TEST_P(Forms, WhatCannotBeReadEndsTheRunOrIsLeftOut) {
  const auto open = [](const std::string& split) {
    auto source = std::make_unique<MemorySource>(std::vector<std::string>{"a", "b"});
    source->add(split + "/a/1.jpg", 0, image_like(1, 50));
    source->add(split + "/a/2.jpg", 0, "unreadable");
    source->add(split + "/b/3.jpg", 1, "<html>");
    source->add(split + "/b/4.jpg", 1, image_like(4, 50));
    source->add(split + "/b/5.jpg", -1, image_like(5, 50));
    return source;
  };
  const TemporaryFolder first("tessera-pack"), second("tessera-pack");
  PackOptions options = small_options(GetParam());
  options.splits = {"val"};
  EXPECT_EQ(error_text([&] { pack(open, "x", first.path(), options); }),
            "[test.load] cannot read val/a/2.jpg; --skip-broken leaves such samples out");
  options.skip_broken = true;
  const PackResult result = pack(open, "x", second.path(), options);
  ASSERT_EQ(result.splits.size(), 1U);
  ASSERT_EQ(result.splits[0].parts.size(), 1U);
  EXPECT_EQ(result.splits[0].parts[0].samples, 2);
  EXPECT_EQ(result.splits[0].parts[0].left_out,
            (std::vector<std::string>{"val/a/2.jpg", "val/b/3.jpg", "val/b/5.jpg"}));
}

/// Every sample of a split, as read_back.py expects them.
nlohmann::json expectation(const std::string& split, const fs::path& digests) {
  const MemorySource source = small_source(split, split == "train" ? 60 : 7);
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t i = 0; i < source.size(); ++i) {
    write_file_atomic(digests / "x", source.load(i).file);
    const std::string command =
        concat("sha256sum < '", (digests / "x").string(), "' > '", (digests / "y").string(), "'");
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
    const std::string path = source.sample_name(i).substr(split.size() + 1);
    const std::string key = fs::path(path).stem().string();
    rows.push_back({path, key, source.label(i), read_file(digests / "y").substr(0, 64)});
  }
  return rows;
}

int read_back(const std::string& python, const std::string& reader, const fs::path& folder,
              const fs::path& expected) {
  const std::string command = concat("'", python, "' '", TESSERA_SOURCE_DIR, "/tests/prepare/read_back.py' ",
                                     reader, " '", folder.string(), "' '", expected.string(), "'");
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct ReadBack {
  TemporaryFolder folder{"tessera-pack"}, scratch{"tessera-expected"};
  fs::path expected = scratch.path() / "expected.json";

  explicit ReadBack(Form form) {
    PackOptions options = small_options(form);
    options.writer.dali_index = form == Form::kWds;
    if (form == Form::kWds) options.writer.index_dir = folder.path() / "indexes";
    pack(open_small, "small", folder.path(), options);
    const nlohmann::json rows = {{"train", expectation("train", scratch.path())},
                                 {"val", expectation("val", scratch.path())}};
    write_file_atomic(expected, rows.dump());
  }
};

TEST_P(Forms, PythonsOwnReadersGiveBackEverySample) {
  if (std::system("python3 -c pass") != 0) GTEST_SKIP() << "there is no python3";
  const ReadBack packed(GetParam());
  EXPECT_EQ(read_back("python3", form_name(GetParam()), packed.folder.path(), packed.expected), 0);
}

/// The readers people use. TESSERA_PEERS_PYTHON names a Python that has them.
TEST_P(Forms, TheUsualPackagesGiveBackEverySample) {
  static const std::map<Form, std::string> kReaders = {
      {Form::kFolder, "torchvision"}, {Form::kWds, "webdataset"}, {Form::kTfrecord, "tfds"}};
  const char* python = std::getenv("TESSERA_PEERS_PYTHON");
  const auto reader = kReaders.find(GetParam());
  if (reader == kReaders.end()) GTEST_SKIP() << "zip archives are read by Python's own zipfile";
  if (python == nullptr) GTEST_SKIP() << "TESSERA_PEERS_PYTHON is not set: no Python with " << reader->second;
  const ReadBack packed(GetParam());
  const int code = read_back(python, reader->second, packed.folder.path(), packed.expected);
  if (code == 77) GTEST_SKIP() << python << " has no " << reader->second;
  EXPECT_EQ(code, 0);
}

TEST(Pack, ShardsAreCutByBytesAndBySamples) {
  const TemporaryFolder by_samples("tessera-pack"), by_bytes("tessera-pack");
  PackOptions options = small_options(Form::kWds);
  options.splits = {"train"};
  options.max_bytes = 0;
  options.max_samples = 25;
  options.writer.name = "small";
  PackResult result = pack(open_small, "small", by_samples.path(), options);
  ASSERT_EQ(result.splits[0].parts.size(), 3U);
  EXPECT_EQ(result.splits[0].parts[0].samples, 25);
  EXPECT_EQ(result.splits[0].parts[2].samples, 10);
  EXPECT_EQ(result.splits[0].parts[2].end, 60);
  EXPECT_EQ(files_of(by_samples.path()).count("small-train-000002.tar"), 1U);
  options.max_samples = 0;
  options.max_bytes = 4096;
  result = pack(open_small, "small", by_bytes.path(), options);
  bool alone = false;
  for (const SealedPart& part : result.splits[0].parts) {
    EXPECT_TRUE(part.bytes <= 4096 || part.samples == 1) << part.bytes;
    alone = alone || part.bytes > 4096;
  }
  EXPECT_TRUE(alone) << "a sample above the limit is a shard of its own";
}

TEST(Pack, PlainPixelsBecomePng) {
  const TemporaryFolder folder("tessera-pack");
  PackOptions options = small_options(Form::kFolder);
  options.splits = {"train"};
  pack(
      [](const std::string& split) {
        return data::open_source("fake:12", split,
                                 {.fake_image_size = 8, .fake_channels = 3, .fake_classes = 12});
      },
      "fake:12", folder.path(), options);
  const auto made =
      data::open_source("fake:12", "train", {.fake_image_size = 8, .fake_channels = 3, .fake_classes = 12});
  const auto read = data::open_source("folder:" + folder.path().string(), "train", {.index_dir = "none"});
  ASSERT_EQ(read->size(), 12);
  EXPECT_EQ(read->classes().size(), 12U);
  for (int64_t i = 0; i < 12; ++i) {
    const std::string name = read->sample_name(i);
    const int64_t index = std::stoll(fs::path(name).stem().string());
    EXPECT_EQ(read->label(i), made->label(index)) << name;
    EXPECT_EQ(read->read(i, 3).pixels, made->read(index, 3).pixels) << name;
  }
}

TEST(Pack, FoldersThatHoldSomethingElseAreRefused) {
  const TemporaryFolder folder("tessera-pack");
  const std::string where = folder.path().string();
  write_file_atomic(folder.path() / "thesis.tex", "x");
  const PackOptions options = small_options(Form::kWds);
  EXPECT_EQ(error_text([&] { pack(open_small, "small", folder.path(), options); }),
            concat("[prepare.journal] ", where,
                   " has thesis.tex: expected an empty folder, or one that the same command began to fill"));
  EXPECT_FALSE(fs::exists(folder.path() / "pack.jsonl"));
  fs::remove(folder.path() / "thesis.tex");
  pack(open_small, "small", folder.path(), options);
  PackOptions other = options;
  other.shuffle = 3;
  EXPECT_EQ(error_text([&] { pack(open_small, "small", folder.path(), other); }),
            concat("[prepare.journal] a different command began to fill this folder: --shuffle was '' and is "
                   "'3' now (",
                   where, "/pack.jsonl); repeat that command, or choose another folder"));
  const auto larger = [](const std::string& split) {
    return std::make_unique<MemorySource>(small_source(split, 61));
  };
  EXPECT_NE(error_text([&] {
              pack(larger, "small", folder.path(), options);
            }).find("samples of train was '60 samples, "),
            std::string::npos);
  write_file_atomic(folder.path() / "pack.jsonl", "not a journal\n");
  EXPECT_EQ(error_text([&] { pack(open_small, "small", folder.path(), options); }),
            concat("[prepare.journal] ", where,
                   "/pack.jsonl is not the journal of an earlier run; choose another folder"));
}

TEST(Pack, NamesOfShardsStayInTheFolder) {
  const TemporaryFolder above("tessera-pack");
  const fs::path folder = above.path() / "q" / "in";
  for (const Form form : {Form::kWds, Form::kTfrecord}) {
    for (const std::string name :
         {"../x", "a/b", ".hidden", "..", "two words", "line\nfeed", "caf\xc3\xa9"}) {
      PackOptions options = small_options(form);
      options.writer.name = name;
      EXPECT_TRUE(error_text([&] {
                    pack(open_small, "small", folder, options);
                  }).starts_with("[prepare.pack] --name is '"))
          << name;
    }
  }
  EXPECT_TRUE(fs::is_empty(above.path())) << "looked at before anything is made";
  PackOptions options = small_options(Form::kWds);
  options.writer.name = "a.b_c-1";
  pack(open_small, "small", folder, options);
  EXPECT_TRUE(fs::exists(folder / "a.b_c-1-train-000000.tar"));
}

TEST(Pack, AFolderThatCannotBeMadeIsOneLine) {
  const TemporaryFolder above("tessera-pack");
  write_file_atomic(above.path() / "file", "x");
  const fs::path folder = above.path() / "file" / "in";
  EXPECT_EQ(error_text([&] { pack(open_small, "small", folder, small_options(Form::kWds)); }),
            "[prepare.write] cannot create the folder " + folder.string() + ": Not a directory");
}

TEST(Pack, SplitsHaveTheSameClasses) {
  const TemporaryFolder folder("tessera-pack");
  const auto open = [](const std::string& split) {
    auto source = std::make_unique<MemorySource>(std::vector<std::string>{"a", split});
    source->add("x.jpg", 0, image_like(1, 50));
    return source;
  };
  EXPECT_EQ(error_text([&] { pack(open, "x", folder.path(), small_options(Form::kZip)); }),
            "[prepare.pack] split val has 2 classes that differ from the 2 of train: expected the same "
            "classes in every split");
}

TEST(Pack, FormsHaveNames) {
  EXPECT_EQ(form_of("tfrecord"), Form::kTfrecord);
  EXPECT_EQ(
      error_text([] { form_of("webds"); }),
      "[prepare.form] the form is 'webds': expected one of folder, wds, zip, tfrecord; did you mean wds?");
}

}  // namespace
}  // namespace tessera::prepare
