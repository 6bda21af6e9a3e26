// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/class_difference.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::data {
namespace {

using Names = std::vector<std::string>;

std::string text(const Names& known, const Names& found) {
  const auto difference = class_difference(known, found);
  if (!difference) return "none";
  return (difference->other_order ? "order: " : "") + difference->text;
}

TEST(ClassDifference, WhatBothHaveMustAgree) {
  EXPECT_EQ(text({}, {"a"}), "none");
  EXPECT_EQ(text({"a"}, {}), "none");
  EXPECT_EQ(text({"a", "b"}, {"a", "b"}), "none");
  EXPECT_EQ(text({"a", "b", "c"}, {"a", "b"}), "none");
}

TEST(ClassDifference, NamesTheFirst) {
  EXPECT_EQ(text({"a", "b", "c"}, {"a", "B", "C"}), "label 1 is 'b' in the checkpoint and 'B' in the data");
  EXPECT_EQ(text({"a"}, {"a", "b"}), "the checkpoint has 1 classes and the data 2, label 1 is 'b'");
  EXPECT_EQ(text({"0"}, {"shirt\n"}), "label 0 is '0' in the checkpoint and 'shirt\\n' in the data");
}

// A class that is missing moves all that follow; so do numbers in the order of text.
TEST(ClassDifference, ANameUnderAnotherLabelIsAnotherOrder) {
  EXPECT_EQ(text({"cat", "cow", "dog"}, {"cat", "dog"}),
            "order: label 1 is 'cow' in the checkpoint and 'dog' in the data, which is label 2 there");
  EXPECT_EQ(text({"0", "1", "2", "3", "10"}, {"0", "1", "10", "2"}),
            "order: label 2 is '2' in the checkpoint and '10' in the data, which is label 4 there");
  EXPECT_EQ(text({"a", "b", "c"}, {"x", "c", "y"}),
            "order: label 1 is 'b' in the checkpoint and 'c' in the data, which is label 2 there");
}

TEST(ClassDifference, AnEvaluationWarnsOrIsRefused) {
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& line) { warnings.push_back(line); };
  check_same_classes({"a", "b"}, {"a"}, "folder:/x", warn);
  EXPECT_TRUE(warnings.empty());
  check_same_classes({"a", "b"}, {"a", "c"}, "folder:/x", warn);
  EXPECT_EQ(
      warnings,
      Names{"[data.classes] the classes of folder:/x differ from those of the training data: label 1 is 'b' "
            "in the "
            "checkpoint and 'c' in the data; metrics are meaningful only if both have the same classes"});
  EXPECT_EQ(
      error_text([&] {
        check_same_classes({"a", "b"}, {"b"}, "folder:/x", warn);
      }),
      "[data.classes] the classes of folder:/x differ from those of the training data: label 0 is 'a' in the "
      "checkpoint and 'b' in the data, which is label 1 there: expected the same classes in the same order; "
      "labels are positions of sorted names, so a class without images needs an empty folder");
}

TEST(ClassDifference, AKeptHeadAndATeacherAreRefusedOrWarnedAbout) {
  std::vector<std::string> warnings;
  const auto check = [&](const std::vector<std::string>& known, const std::vector<std::string>& found) {
    warnings.clear();
    return error_text([&] {
      check_weights_classes("distill.teacher", "a", known, found,
                            [&](const std::string& line) { warnings.push_back(line); });
    });
  };
  EXPECT_EQ(check({"cat", "cow"}, {"cow", "cat"}),
            "[data.classes] distill.teacher: a has other classes than the data: label 0 is 'cat' in the "
            "checkpoint and "
            "'cow' in the data, which is label 1 there: expected the same names under the same labels; "
            "reorder the data "
            "by data.classes, or take weights trained on these classes");
  EXPECT_EQ(check({"cat", "cow"}, {"cat", "dog"}), "no error");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("label 1 is 'cow' in the checkpoint and 'dog' in the data"), std::string::npos);
  EXPECT_EQ(check({}, {"cat", "dog"}), "no error");
  EXPECT_EQ(warnings,
            std::vector<std::string>{
                "distill.teacher: a does not name its classes; label i is taken for class i of the data"});
  EXPECT_EQ(check({"cat", "cow"}, {"cat", "cow"}), "no error");
  EXPECT_TRUE(warnings.empty());
  for (const Names& unnamed : {Names{}, Names{"0", "1"}}) {
    EXPECT_EQ(check({"cat", "cow"}, unnamed), "no error");
    EXPECT_EQ(
        warnings,
        Names{"distill.teacher: the data does not name its classes; label i is taken for class i of a"});
    EXPECT_EQ(check({}, unnamed), "no error");
    EXPECT_TRUE(warnings.empty());
  }
}

TEST(ClassDifference, NumbersAreNoNamesButKeepTheirOrder) {
  EXPECT_EQ(unnamed_classes("a.safetensors", {}, "folder:/x", {"cat", "cow"}),
            "a.safetensors does not name its classes; label i is taken for class i of folder:/x");
  EXPECT_EQ(unnamed_classes("a.safetensors", {"cat", "cow"}, "idx:/x", {"0", "1"}),
            "idx:/x does not name its classes; label i is taken for class i of a.safetensors");
  EXPECT_EQ(unnamed_classes("a", {"0", "1", "2"}, "b", {"0", "1"}), "");
  EXPECT_EQ(unnamed_classes("a", {"cat"}, "b", {"cow"}), "");
  const auto no_warning = [](const std::string& line) { ADD_FAILURE() << line; };
  check_same_classes({"0", "1"}, {"cat", "cow"}, "folder:/x", no_warning);
  check_same_classes({"cat", "cow"}, {"0", "1"}, "idx:/x", no_warning);
  // Names in the order of text, though those of the weights are numbers.
  EXPECT_THROW(check_same_classes({"0", "1", "2"}, {"0", "2"}, "folder:/x", no_warning), UserError);
}

}  // namespace
}  // namespace tessera::data
