// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace {
using namespace testing;
namespace fs = std::filesystem;

TEST(Retention, KeepsTheNewestAndTheBest) {
  const TemporaryFolder folder("tessera-checkpoint");
  for (int64_t step = 1; step <= 6; ++step) {
    save_sample({.folder = folder.path(), .keep = 2, .best = step == 2}, step, 2);
  }
  EXPECT_EQ(names_in(folder.path()), Names({"best.json", "step_00000002", "step_00000005", "step_00000006"}));
  EXPECT_EQ(find(folder.path(), "best"), folder.path() / "step_00000002");
  EXPECT_EQ(read_file(folder.path() / "best.json"), R"({"step":2,"kept":[{"step":2,"score":0.0,"of":""}]})"
                                                    "\n");
  save_sample({.folder = folder.path(), .keep = 2, .best = true, .score = 1}, 7);
  EXPECT_EQ(names_in(folder.path()), Names({"best.json", "step_00000006", "step_00000007"}));
}

TEST(Retention, AsManyOfTheBestAsAskedForStay) {
  const TemporaryFolder folder("tessera-checkpoint");
  const double scores[] = {5, 9, 7, 9, 8, 1};
  const auto save_step = [&](int64_t step, const char* of) {
    save_sample({.folder = folder.path(),
                 .keep = 1,
                 .best = true,
                 .score = scores[step - 1],
                 .score_of = of,
                 .keep_best = 3},
                step);
  };
  for (int64_t step = 1; step <= 6; ++step) save_step(step, "top1");
  EXPECT_EQ(names_in(folder.path()),
            Names({"best.json", "step_00000002", "step_00000004", "step_00000005", "step_00000006"}));
  EXPECT_EQ(find(folder.path(), "best"), folder.path() / "step_00000002") << "of equal ones the first";
  set_aside_after(folder.path(), 4, Ranks{});
  EXPECT_EQ(read_file(folder.path() / "best.json"),
            R"({"step":2,"kept":[{"step":2,"score":9.0,"of":"top1"},{"step":4,"score":9.0,"of":"top1"}]})"
            "\n");
  save_step(6, "loss");
  EXPECT_EQ(find(folder.path(), "best"), folder.path() / "step_00000006") << "by something else";
  write_file_atomic(folder.path() / "best.json", "nonsense");
  save_step(5, "loss");
  EXPECT_EQ(find(folder.path(), "best"), folder.path() / "step_00000005");
}

TEST(Retention, MultiplesStayForGood) {
  const TemporaryFolder folder("tessera-checkpoint");
  for (int64_t step = 1; step <= 10; ++step) {
    save_sample({.folder = folder.path(), .keep = 2, .best = step == 2, .keep_every = 4}, step);
  }
  EXPECT_EQ(names_in(folder.path()), Names({"best.json", "step_00000002", "step_00000004", "step_00000008",
                                            "step_00000009", "step_00000010"}));
}

TEST(Retention, ZeroKeepsAll) {
  const TemporaryFolder folder("tessera-checkpoint");
  for (int64_t step = 1; step <= 5; ++step) save_sample({.folder = folder.path(), .keep = 0}, step);
  EXPECT_EQ(names_in(folder.path()).size(), 5U);
}

TEST(Retention, TheOneJustSavedStaysThoughLaterOnesExist) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path(), .keep = 1}, 100);
  save_sample({.folder = folder.path(), .keep = 1}, 50);
  EXPECT_EQ(names_in(folder.path()), Names({"step_00000050", "step_00000100"}));
}

TEST(Retention, AnUnreadableBestRemovesNothing) {
  const TemporaryFolder folder("tessera-checkpoint");
  write_file_atomic(folder.path() / "best.json", "nonsense");
  for (int64_t step = 1; step <= 3; ++step) save_sample({.folder = folder.path(), .keep = 1}, step);
  EXPECT_EQ(names_in(folder.path()), Names({"best.json", "step_00000001", "step_00000002", "step_00000003"}));
}

TEST(Retention, OtherFilesAreNotTouched) {
  const TemporaryFolder folder("tessera-checkpoint");
  for (const char* name : {"notes.tmp", "step_1", "step_00000009.tmp.bak", "step_x.tmp"}) {
    fs::create_directory(folder.path() / name);
  }
  save_sample({.folder = folder.path(), .keep = 1}, 10);
  EXPECT_EQ(names_in(folder.path()),
            Names({"notes.tmp", "step_00000009.tmp.bak", "step_00000010", "step_1", "step_x.tmp"}));
}

TEST(SavedTwice, TheNewTakesThePlaceOfTheOld) {
  const TemporaryFolder folder("tessera-checkpoint");
  save_sample({.folder = folder.path()}, 5, 3, 1);
  save_sample({.folder = folder.path()}, 5, 2, 2);
  EXPECT_EQ(names_in(folder.path()), Names({"step_00000005"}));
  EXPECT_EQ(wrong_bytes(folder.path() / "step_00000005", 2, 2), 0);
  EXPECT_EQ(names_in(folder.path() / "step_00000005").size(), 3U);
}

// What a kill at each point of replacing a step leaves, and what find and the next save make of it.
struct Crash {
  const char* what;
  bool target, aside, temporary;  // which of step_5, step_5.old, step_5.tmp are there
  int64_t generation;             // that step 5 then has
};

class Crashed : public ::testing::TestWithParam<Crash> {};

TEST_P(Crashed, OneCompleteStepIsAlwaysFoundAndTheRestCleared) {
  const Crash crash = GetParam();
  const TemporaryFolder folder("tessera-checkpoint"), other("tessera-checkpoint");
  save_sample({.folder = other.path()}, 5, 1, 1);
  save_sample({.folder = folder.path()}, 4, 1, 4);
  const auto put = [&](const char* name, int64_t generation) {
    save_sample({.folder = other.path()}, 5, 1, generation);
    fs::copy(other.path() / "step_00000005", folder.path() / name);
  };
  if (crash.target) put("step_00000005", crash.aside ? 2 : 1);
  if (crash.aside) put("step_00000005.old", 1);
  if (crash.temporary) put("step_00000005.tmp", 2);

  const auto found = find(folder.path(), "latest");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(wrong_bytes(*found, 1, crash.generation), 0) << *found;
  EXPECT_EQ(find(folder.path(), "5"), found);
  save_sample({.folder = folder.path()}, 6);
  EXPECT_EQ(names_in(folder.path()), Names({"step_00000004", "step_00000005", "step_00000006"}));
  EXPECT_EQ(wrong_bytes(folder.path() / "step_00000005", 1, crash.generation), 0);
}
INSTANTIATE_TEST_SUITE_P(Moments, Crashed,
                         ::testing::Values(Crash{"before the old goes aside", true, false, true, 1},
                                           Crash{"between the two renames", false, true, true, 1},
                                           Crash{"before the old is removed", true, true, false, 2}));

TEST(Stale, HalfWrittenFoldersGoAtTheNextSave) {
  const TemporaryFolder folder("tessera-checkpoint");
  fs::create_directory(folder.path() / "step_00000003.tmp");
  write_file_atomic(folder.path() / "step_00000003.tmp" / "shard-00000-of-00001.safetensors", "half");
  write_file_atomic(folder.path() / "best.json.tmp77", "half");
  EXPECT_EQ(find(folder.path(), "latest"), std::nullopt);
  save_sample({.folder = folder.path()}, 9);
  EXPECT_EQ(names_in(folder.path()), Names({"step_00000009"}));
}

}  // namespace
}  // namespace tessera::checkpoint
