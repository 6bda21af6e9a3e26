// SPDX-License-Identifier: Apache-2.0
// SIGKILL at 50 random moments of saving: the newest complete checkpoint loads and verifies, and nothing
// older is gone but by retention.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "sample_state.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

const Tensors kTensors = {{"param/w", "F32", {251, 97}}, {"param/b", "BF16", {513}}, {"step", "I64", {1}}};
constexpr int64_t kKeep = 3;

// What the child tells before and after each save, in memory that outlives it.
struct Diary {
  std::atomic<int64_t> begun_step, done_step, begun_generation, done_generation, done_best;
};

int64_t generation_of(const fs::path& checkpoint) {
  return std::stoll(read_manifest(checkpoint).progress.plan_json);
}

void save_once(const fs::path& folder, int64_t step, int64_t generation, bool best, Diary& diary) {
  diary.begun_step = step;
  diary.begun_generation = generation;
  const auto errors = run_ranks(2, [&](const Ranks& ranks) {
    auto state = part_of(kTensors, ranks.rank, ranks.world);
    state.fill(generation);
    auto progress = at_step(step);
    progress.plan_json = std::to_string(generation);
    save({.folder = folder, .keep = kKeep, .best = best, .score = static_cast<double>(step)}, state.shards,
         progress, ranks);
  });
  for (const auto& error : errors) {
    if (!error.empty()) ::_exit(3);
  }
  diary.done_step = step;
  diary.done_generation = generation;
  if (best) diary.done_best = step;
}

// Saves until it is killed: every third step twice, every fifth as best.
[[noreturn]] void save_for_ever(const fs::path& folder, Diary& diary, std::atomic<bool>& running) {
  int64_t step = diary.done_step, generation = diary.begun_generation;
  for (running = true;;) {
    ++step;
    save_once(folder, step, ++generation, step % 5 == 0, diary);
    if (step % 3 == 0) save_once(folder, step, ++generation, false, diary);
  }
}

void check_after_kill(const fs::path& folder, const Diary& diary) {
  const int64_t done = diary.done_step;
  const auto latest = find(folder, "latest");
  ASSERT_EQ(latest.has_value(), done > 0 || latest.has_value());
  if (!latest) return;
  const auto manifest = read_manifest(*latest);
  EXPECT_GE(manifest.progress.step, done);
  EXPECT_LE(manifest.progress.step, diary.begun_step);
  EXPECT_EQ(verify(*latest), Names());
  const int64_t generation = generation_of(*latest);
  EXPECT_TRUE(generation == diary.done_generation || generation == diary.begun_generation) << generation;
  EXPECT_EQ(wrong_bytes(*latest, 3, generation, true, kTensors), 0);
  const int64_t oldest = std::max<int64_t>(1, manifest.progress.step - kKeep + 1);
  for (int64_t step = oldest; step < manifest.progress.step; ++step) {
    const auto found = find(folder, std::to_string(step));
    EXPECT_EQ(verify(*found), Names()) << step;
  }
  if (diary.done_best > 0) {
    const auto best = find(folder, "best");
    EXPECT_GE(read_manifest(*best).progress.step, diary.done_best);
    EXPECT_EQ(verify(*best), Names());
  }
}

TEST(Killed, At50RandomMomentsNothingOlderIsLost) {
  const TemporaryFolder folder("tessera-checkpoint");
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& diary = *new (shared) Diary{};
  auto& running = *new (static_cast<std::byte*>(shared) + 1024) std::atomic<bool>;
  std::mt19937 random(2024);
  std::uniform_int_distribution<int> delay(0, 120'000);  // microseconds: several saves
  for (int round = 0; round < 50 && !HasFatalFailure(); ++round) {
    running = false;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(folder.path(), diary, running);
    while (!running) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: a save failed";
    SCOPED_TRACE(concat("round ", round, ", step ", diary.begun_step, " begun, ", diary.done_step, " done"));
    check_after_kill(folder.path(), diary);
    if (const auto latest = find(folder.path(), "latest")) {  // a resumed run goes on from there
      diary.done_step = read_manifest(*latest).progress.step;
      diary.done_generation = generation_of(*latest);
    }
  }
  EXPECT_GT(diary.done_step, 20) << "too few saves for the kills to mean much";
  std::printf("50 kills over %ld saves\n", static_cast<long>(diary.begun_generation));
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace tessera::checkpoint
