// SPDX-License-Identifier: Apache-2.0
// Saves beside the training: what is saved is the state when save() was called, errors come with the next
// call.
#include "tessera/loop/saver.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../mesh/ranks.h"
#include "on_mesh.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/eager/session.h"

namespace {
std::atomic<bool> slow_disk = false;

/// "fsync NAME" and "rename FROM TO" in their order, by file name, while it is on.
std::atomic<bool> records_files = false;
std::mutex mutex;
std::vector<std::string> file_operations;

void record(const std::string& operation) {
  const std::lock_guard lock(mutex);
  file_operations.push_back(operation);
}
/// Without the number at the end of a temporary file's name.
std::string name_of(const char* path) {
  const std::string name = std::filesystem::path(path).filename();
  const size_t number = name.find(".tmp-");
  return number == std::string::npos ? name : name.substr(0, number + 4);
}
}  // namespace

/// Stands before the C library's: a disk that takes its time.
extern "C" int fsync(int fd) {
  if (slow_disk) std::this_thread::sleep_for(std::chrono::milliseconds(700));
  if (records_files) {
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
    record("fsync " + name_of(path.c_str()));
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) {
  if (records_files) record("rename " + name_of(from) + " " + name_of(to));
  return static_cast<int>(::syscall(SYS_rename, from, to));
}

namespace tessera::train {
namespace {

constexpr int64_t kWorld = 2;

recipe::Recipe saver_recipe(bool async, const std::string& level = "zero3") {
  return recipe::parse_recipe(
      R"(
name = "saver"
[model]
image_size = 16
patch_size = 8
width = 24
depth = 2
heads = 2
mlp_width = 40
classes = 7
[data]
source = "fake:96"
[train]
batch = 16
steps = 6
[checkpoint]
keep = 2
)",
      "test", ".", {async ? "checkpoint.async=true" : "checkpoint.async=false", "shard.level=" + level});
}

std::unique_ptr<TrainState> make_state(bool async, mesh::Mesh& mesh, const std::string& level = "zero3") {
  const recipe::Recipe recipe = saver_recipe(async, level);
  return assemble(recipe, make_plan(recipe, mesh.world_size()), mesh, true);
}

std::vector<at::Tensor> masters(const TrainState& state) {
  std::vector<at::Tensor> copies;
  for (const auto& unit : state.sharded->units()) copies.push_back(unit->master().clone());
  return copies;
}

void change(TrainState& state) {
  for (const auto& unit : state.sharded->units()) {
    for (shard::Shard shard : unit->shards()) shard.master.fill_(7.0);  // the padding is not saved
  }
}

/// One folder for all ranks.
struct Folder {
  TemporaryFolder base{"tessera-saver"};
  std::filesystem::path path = base.path() / "checkpoints";
};

class SaverTable : public ::testing::TestWithParam<bool> {};

TEST_P(SaverTable, WritesTheStateAsItWasWhenAsked) {
  const bool async = GetParam();
  const Folder folder;
  testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
    const auto state = make_state(async, mesh);
    const auto expected = masters(*state);
    Log log(false);
    StateSaver saver(*state, mesh, folder.path, log);
    EXPECT_EQ(saver.finish(), std::filesystem::path());
    saver.save(false);
    change(*state);
    const auto checkpoint = saver.finish();
    EXPECT_EQ(checkpoint.filename(), "step_00000000");
    train::load_state(*state, checkpoint);
    const auto found = masters(*state);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
    EXPECT_EQ(saver.times().saves, 1);
    EXPECT_GT(saver.times().written, 0.0);
    EXPECT_GT(saver.times().stalled, 0.0);
  });
}

TEST_P(SaverTable, SavesFollowEachOtherAndTheOldestGo) {
  const bool async = GetParam();
  const Folder folder;
  testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
    const auto state = make_state(async, mesh);
    Log log(false);
    StateSaver saver(*state, mesh, folder.path, log);
    for (state->step = 1; state->step <= 4; ++state->step) saver.save(state->step == 1);
    EXPECT_EQ(saver.finish().filename(), "step_00000004");
    EXPECT_EQ(saver.times().saves, 4);
    for (const int step : {1, 3, 4}) {  // the best, and two
      EXPECT_TRUE(std::filesystem::exists(folder.path / concat("step_0000000", step) / "manifest.json"))
          << step;
    }
    EXPECT_FALSE(std::filesystem::exists(folder.path / "step_00000002"));
  });
}

TEST_P(SaverTable, AFailureIsAnErrorOfEveryRank) {
  const bool async = GetParam();
  const Folder folder;
  std::ofstream(folder.path) << "a file where the folder should be";
  testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
    const auto state = make_state(async, mesh);
    Log log(false);
    StateSaver saver(*state, mesh, folder.path, log);
    std::string message;
    try {
      saver.save(false);
      EXPECT_TRUE(async) << "a save that waits says so at once";
      saver.finish();
    } catch (const UserError& error) {
      message = error.what();
    }
    EXPECT_EQ(message.rfind("[checkpoint.save] step_00000000 could not be written: rank 0 of 2 failed: ", 0),
              0U)
        << message;
    EXPECT_EQ(saver.finish(), std::filesystem::path());
  });
}

// 12 bytes a parameter: master weight and two moments.
TEST(SaverCopies, WhatThisRankWritesAndNoMore) {
  const auto all = 12 * arch::parameter_count(saver_recipe(true).model);
  for (const std::string level : {"zero3", "replicate"}) {
    for (const bool own_folders : {false, true}) {
      SCOPED_TRACE(concat(level, own_folders ? ", a folder of each rank's own" : ", one folder"));
      const Folder folder;
      std::array<int64_t, kWorld> copied{};
      testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
        const auto state = make_state(true, mesh, level);
        const auto expected = masters(*state);
        Log log(false);
        StateSaver saver(*state, mesh, own_folders ? folder.path / std::to_string(mesh.rank()) : folder.path,
                         log);
        saver.save(false);
        change(*state);
        train::load_state(*state, saver.finish());
        const auto found = masters(*state);
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
        copied.at(static_cast<size_t>(mesh.rank())) = saver.times().copied_bytes;
      });
      if (level == "zero3") {
        EXPECT_EQ(copied[0] + copied[1], all);
      } else {
        EXPECT_EQ(copied[0], all);
        EXPECT_EQ(copied[1], own_folders ? all : 0);
      }
    }
  }
}

// A checkpoint survives a loss of power: files reach the disk before their folder gets its name, and the
// folder that names it right after.
TEST(SaverFiles, ReachTheDiskBeforeTheyAreNamed) {
  const Folder folder;
  testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
    const auto state = make_state(false, mesh);
    Log log(false);
    StateSaver saver(*state, mesh, folder.path, log);
    mesh.world().barrier("begin");
    records_files = true;
    saver.save(false);
    saver.finish();
    mesh.world().barrier("end");
    records_files = false;
  });
  const auto at = [&](const std::string& operation, size_t from = 0) {
    const auto found = std::find(file_operations.begin() + static_cast<std::ptrdiff_t>(from),
                                 file_operations.end(), operation);
    EXPECT_NE(found, file_operations.end()) << operation << " in " << join(file_operations, "; ");
    return static_cast<size_t>(found - file_operations.begin());
  };
  const size_t named = at("rename step_00000000.tmp step_00000000");
  for (const char* file : {"shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"}) {
    EXPECT_LT(at(concat("fsync ", file)), at("rename manifest.json.tmp manifest.json")) << file;
  }
  EXPECT_LT(at("fsync manifest.json.tmp"), at("rename manifest.json.tmp manifest.json"));
  EXPECT_LT(at("rename manifest.json.tmp manifest.json"), at("fsync step_00000000.tmp"));
  EXPECT_LT(at("fsync step_00000000.tmp"), named) << "the names of its files";
  EXPECT_EQ(at("fsync " + folder.path.filename().string(), named), named + 1) << "its own name";
}

// 250 MB of state, and files that take 0.7 s to reach the disk.
TEST(SaverStall, IsTheCopyAndNotTheWriting) {
  const Folder folder;
  recipe::Recipe recipe = recipe::parse_recipe(
      "[model]\nimage_size = 32\npatch_size = 8\nwidth = 768\ndepth = 3\nheads = 12\n"
      "classes = 7\n[data]\nsource = \"fake:96\"\n[train]\nbatch = 16\nsteps = 6\n",
      "test", ".", {"checkpoint.async=true"});
  ASSERT_GT(12 * arch::parameter_count(recipe.model), 250'000'000);
  testing::run_ranks({{"shard", kWorld}}, [&](mesh::Mesh& mesh) {
    const auto state = assemble(recipe, make_plan(recipe, mesh.world_size()), mesh, true);
    Log log(false);
    StateSaver saver(*state, mesh, folder.path, log);
    slow_disk = true;
    saver.save(false);
    const SaveTimes stall = saver.times();
    EXPECT_EQ(stall.written, 0.0) << "returned after the writing";
    EXPECT_EQ(saver.finish().filename(), "step_00000000");
    slow_disk = false;
    const double written = saver.times().written;
    std::printf("stalled %.3f s (copy %.3f s of %.0f MB), writing %.3f s\n", stall.stalled, stall.copied,
                static_cast<double>(stall.copied_bytes) / 1e6, written);
    EXPECT_GT(written, 1.4) << "the disk is not slow: this test has no say";
    EXPECT_LT(stall.stalled, written / 2);
    EXPECT_GT(stall.copied, 0.0);
    EXPECT_LE(stall.copied, stall.stalled);
    EXPECT_GT(saver.times().stalled, stall.stalled + written / 2) << "waiting for the writer counts as well";
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, SaverTable, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "beside_the_training" : "at_once"; });

}  // namespace
}  // namespace tessera::train
