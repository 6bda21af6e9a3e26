// SPDX-License-Identifier: Apache-2.0
// What `tessera eval --output-dir` leaves.
#include "tessera/monitor/evaluation_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::monitor {
namespace {

namespace fs = std::filesystem;

EvaluationReport make_report(int64_t most_confusion_classes) {
  EvaluationReport report;
  report.title = "tiny <run>";
  report.checkpoint = "runs/tiny/checkpoints/step_00000010";
  report.split = "val";
  report.facts = {{"model", "a & b"}};
  report.classes = {"cat", "dog, \"big\"", "<bird>"};
  ClassificationCounts counts(3, most_confusion_classes);
  WorstMistakes worst(10);
  const std::vector<std::pair<std::vector<float>, int64_t>> samples = {
      {{4, 0, 0}, 0}, {{0, 4, 0}, 0}, {{0, 1, 0}, 1}, {{3, 0, 1}, 1}};
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto& [logits, label] = samples[i];
    counts.update(judge(logits, label), label);
    worst.update(static_cast<int64_t>(i), label, judge(logits, label));
  }
  counts.update_broken();
  report.figures = counts.compute();
  for (const Mistake& mistake : worst.list()) {
    const auto name = [&](int64_t label) { return report.classes[static_cast<size_t>(label)]; };
    report.mistakes.push_back({mistake,
                               "val/image-" + std::to_string(mistake.sample) + ".jpg",
                               {2,
                                1,
                                3,
                                {1, 2, 3, 4, 5, 6},
                                name(mistake.truth),
                                name(mistake.judgement.prediction),
                                mistake.judgement.confidence}});
  }
  return report;
}

TEST(EvaluationReport, WritesEveryFile) {
  const TemporaryFolder folder("tessera-evaluation");
  const fs::path out = folder.path() / "made/for/it";
  write_evaluation(out, make_report(100));
  const auto json = nlohmann::json::parse(read_file(out / kMetricsFile));
  EXPECT_EQ(json.at("samples"), 5);
  EXPECT_EQ(json.at("broken_samples"), 1);
  EXPECT_EQ(json.at("top1"), 40);
  EXPECT_EQ(json.at("top5"), 80);
  EXPECT_EQ(json.at("mean_class_accuracy"), 50);
  EXPECT_EQ(json.at("calibration").size(), 15U);
  EXPECT_EQ(json.at("split"), "val");
  double error = 0;
  for (const auto& bin : json.at("calibration")) {
    error += bin.at("samples").get<double>() / 4 *
             std::abs(bin.at("accuracy").get<double>() - bin.at("confidence").get<double>());
  }
  EXPECT_NEAR(json.at("ece").get<double>(), 100 * error, 1e-10);
  EXPECT_EQ(read_file(out / kPerClassFile),
            "class,name,samples,correct,accuracy,precision\n"
            "0,cat,2,1,50,50\n"
            "1,\"dog, \"\"big\"\"\",2,1,50,50\n"
            "2,<bird>,0,0,,\n");
  EXPECT_EQ(read_file(out / kConfusionFile),
            "truth,cat,\"dog, \"\"big\"\"\",<bird>\n"
            "cat,1,1,0\n"
            "\"dog, \"\"big\"\"\",1,1,0\n"
            "<bird>,0,0,0\n");
  const std::string mistakes = read_file(out / kMistakesFile);
  EXPECT_EQ(std::count(mistakes.begin(), mistakes.end(), '\n'), 3);
  EXPECT_NE(mistakes.find("\n1,val/image-1.jpg,cat,\"dog, \"\"big\"\"\",0.96"), std::string::npos)
      << mistakes;
}

TEST(EvaluationReport, ThePageShowsPicturesAndEscapesNames) {
  const TemporaryFolder folder("tessera-evaluation");
  write_evaluation(folder.path(), make_report(100));
  const std::string page = read_file(folder.path() / kPageFile);
  for (const char* text :
       {"<title>tiny &lt;run&gt;", "Tessera evaluation", "40.00", "Worst mistakes", "data:image/png;base64,",
        "is cat", "dog, &quot;big&quot;", "&lt;bird&gt;", "Confusion matrix", "Calibration", "a &amp; b",
        "1 broken, counted as wrong", "5 images of val, 3 classes"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  for (const char* text : {"<bird>", "http:", "https:", "<link", "src=\"/"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
}

TEST(EvaluationReport, AConfusionMatrixOfBeforeDoesNotStay) {
  const TemporaryFolder folder("tessera-evaluation");
  write_evaluation(folder.path(), make_report(100));
  EXPECT_TRUE(fs::exists(folder.path() / kConfusionFile));
  write_evaluation(folder.path(), make_report(2));
  EXPECT_FALSE(fs::exists(folder.path() / kConfusionFile));
}

TEST(EvaluationReport, AFolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder("tessera-evaluation");
  write_file_atomic(folder.path() / "file", "");
  const std::string text =
      error_text([&] { write_evaluation(folder.path() / "file/results", make_report(100)); });
  EXPECT_EQ(text.find("[monitor.evaluation] cannot create folder "), 0U) << text;
  EXPECT_NE(text.find("; choose another --output-dir"), std::string::npos) << text;
}

/// A cell that is a flex box is no table cell: a browser puts neighbouring ones into one column, and the last
/// column stays empty (CSS 2.1, 17.2.1). No browser is needed to see that none is one.
TEST(EvaluationReport, CellsOfTablesAreLaidOutAsCells) {
  const TemporaryFolder folder("tessera-evaluation");
  write_evaluation(folder.path(), make_report(100));
  const std::string page = read_file(folder.path() / kPageFile);
  std::set<std::string> classes;
  const std::regex cell("<t[dh] class=\"([^\"]+)\"");
  for (std::sregex_iterator at(page.begin(), page.end(), cell), end; at != end; ++at)
    classes.insert((*at)[1].str());
  EXPECT_TRUE(classes.contains("share")) << "columns with bars";
  const std::regex rule("([^{}]+)\\{([^{}]*)\\}");
  for (std::sregex_iterator at(page.begin(), page.end(), rule), end; at != end; ++at) {
    if ((*at)[2].str().find("display:") == std::string::npos) continue;
    std::stringstream selectors((*at)[1].str());
    for (std::string selector; std::getline(selectors, selector, ',');) {
      for (const std::string& name : classes)
        EXPECT_FALSE(selector.ends_with("." + name) && selector.find("recall") == std::string::npos)
            << selector;
    }
  }
  const auto count = [&](const std::string& text) {
    size_t found = 0;
    for (size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<td class=\"share\"><div>"), count("<td class=\"share\">"));
}

}  // namespace
}  // namespace tessera::monitor
