// SPDX-License-Identifier: Apache-2.0
// What a resumed run compares with the saved one, and where in the data it goes on.
#include "tessera/train/resume.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "rooms.h"
#include "tessera/base/file.h"

namespace tessera::train {
namespace {

const DataRecord kSavedData = {{100, "a"}, {20, "b"}, 24, 1, {1, 48}};
const std::vector<std::string> kSavedNames = {"cat", "cow", "dog"};

TEST(DataRecord, SurvivesJsonAndOldCheckpointsHaveNone) {
  const auto parsed = parse_data_record(to_json(kSavedData));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->train, kSavedData.train);
  EXPECT_EQ(parsed->val, kSavedData.val);
  EXPECT_EQ(parsed->batch, 24);
  EXPECT_EQ(parsed->accumulation, 1);
  EXPECT_EQ(parsed->position, kSavedData.position);
  EXPECT_FALSE(parse_data_record(nlohmann::json()));
  auto outside = to_json(kSavedData);
  outside["index"] = 101;
  EXPECT_FALSE(parse_data_record(outside));
}

TEST(Resume, EveryDifferenceFallsUnderItsRule) {
  EXPECT_TRUE(differences(kSavedData, kSavedNames, kSavedData, kSavedNames).empty());
  const auto only = [&](DataRecord now, const std::vector<std::string>& classes, Compared what,
                        const std::string& text) {
    const auto found = differences(kSavedData, kSavedNames, now, classes);
    ASSERT_EQ(found.size(), 1U) << text;
    EXPECT_EQ(static_cast<int>(found[0].what), static_cast<int>(what)) << text;
    EXPECT_NE(found[0].text.find(text), std::string::npos) << found[0].text;
  };
  DataRecord now = kSavedData;
  now.train.samples = 300;
  only(now, kSavedNames, Compared::kTrainSamples, "100 -> 300 training images");
  now = kSavedData;
  now.train.checksum = "c";
  only(now, kSavedNames, Compared::kTrainNames, "of the 100 training images");
  now = kSavedData;
  now.val.samples = 10;
  only(now, kSavedNames, Compared::kValSamples, "20 -> 10 validation images");
  now = kSavedData;
  now.val.checksum = "c";
  only(now, kSavedNames, Compared::kValNames, "of the 20 validation images");
  DataRecord saved = kSavedData;
  saved.train.labels = "l";
  now = saved;
  now.train.checksum = "c";
  EXPECT_EQ(differences(saved, kSavedNames, now, kSavedNames).at(0).text,
            "names, not labels, of the 100 training images");
  now.train.labels = "m";
  EXPECT_EQ(differences(saved, kSavedNames, now, kSavedNames).at(0).text,
            "names or labels of the 100 training images");
  now = kSavedData;
  now.batch = 48;
  only(now, kSavedNames, Compared::kBatch, "batch 24 -> 48");
  now = kSavedData;
  now.accumulation = 2;
  only(now, kSavedNames, Compared::kAccumulation, "accumulation 1 -> 2");
  only(kSavedData, {"cat", "dog", "emu"}, Compared::kClassOrder, "which is label 2 there");
  only(kSavedData, {"cat", "cow"}, Compared::kClasses, "3 -> 2 classes");
  only(kSavedData, {"cat", "cow", "dog", "emu"}, Compared::kClasses, "4");
  now.train.samples = 1;
  EXPECT_TRUE(differences(std::nullopt, kSavedNames, now, kSavedNames).empty()) << "an old checkpoint";
}

TEST(Resume, TheDocumentationShowsTheTableOfRules) {
  const std::string page = read_file(TESSERA_SOURCE_DIR "/docs/running.md");
  for (const ResumeRule& rule : resume_rules()) {
    const std::string row =
        concat("| ", rule.name, " | ", rule.refused ? "refused" : "warning", " | ", rule.consequence, " |\n");
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(Resume, ThePositionIsInSamples) {
  constexpr auto kDrop = data::Remainder::kDrop, kCarry = data::Remainder::kCarry;
  using Position = data::StreamPosition;
  DataRecord now = kSavedData;
  now.batch = 10;
  EXPECT_EQ(position_to_resume(kSavedData, 6, 24, kDrop, now, kDrop), (Position{1, 48})) << "as saved";
  // Without a record: 6 steps of 24, 4 an epoch of 100.
  EXPECT_EQ(position_to_resume(std::nullopt, 6, 24, kDrop, now, kDrop), (Position{1, 48}));
  EXPECT_EQ(position_to_resume(std::nullopt, 6, 24, kCarry, now, kCarry), (Position{1, 44}));
  // Of 300 samples: the run has trained on 96 + 48.
  now.train.samples = 300;
  EXPECT_EQ(position_to_resume(kSavedData, 6, 24, kDrop, now, kDrop), (Position{0, 144}));
}

}  // namespace
}  // namespace tessera::train
