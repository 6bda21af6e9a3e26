// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/evaluation_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/monitor/evaluation_page.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace fs = std::filesystem;
namespace {

const std::string& name_of(const EvaluationReport& report, int64_t label) {
  return report.classes.at(static_cast<size_t>(label));
}

std::string metrics_json(const EvaluationReport& report) {
  const ClassificationFigures& figures = report.figures;
  nlohmann::ordered_json bins = nlohmann::ordered_json::array();
  for (size_t i = 0; i < figures.bins.size(); ++i) {
    const auto& bin = figures.bins[i];
    const auto samples = static_cast<double>(std::max<int64_t>(bin.samples, 1));
    bins.push_back({{"from", static_cast<double>(i) / kCalibrationBins},
                    {"to", static_cast<double>(i + 1) / kCalibrationBins},
                    {"samples", bin.samples},
                    {"accuracy", static_cast<double>(bin.correct) / samples},
                    {"confidence", bin.confidence}});
  }
  const nlohmann::ordered_json json = {{"top1", figures.top1},
                                       {"top5", figures.top5},
                                       {"loss", figures.loss},
                                       {"mean_class_accuracy", figures.mean_class_accuracy},
                                       {"ece", figures.calibration_error},
                                       {"samples", figures.samples},
                                       {"broken_samples", figures.broken},
                                       {"checkpoint", report.checkpoint},
                                       {"split", report.split},
                                       {"calibration", bins}};
  return json_text(json, 2) + "\n";
}

std::string per_class_csv(const EvaluationReport& report) {
  std::string out = "class,name,samples,correct,accuracy,precision\n";
  const auto& classes = report.figures.classes;
  for (size_t i = 0; i < classes.size(); ++i) {
    const auto& row = classes[i];
    out += concat(i, ',', csv_field(name_of(report, static_cast<int64_t>(i))), ',', row.samples, ',',
                  row.correct, ',', row.samples > 0 ? shortest(row.accuracy()) : "", ',',
                  row.predicted > 0 ? shortest(row.precision()) : "", '\n');
  }
  return out;
}

std::string confusion_csv(const EvaluationReport& report) {
  std::string out = "truth";
  for (const std::string& name : report.classes) out += ',' + csv_field(name);
  out += '\n';
  for (size_t truth = 0; truth < report.figures.confusion.size(); ++truth) {
    out += csv_field(report.classes.at(truth));
    for (const int64_t count : report.figures.confusion[truth]) out += ',' + std::to_string(count);
    out += '\n';
  }
  return out;
}

std::string mistakes_csv(const EvaluationReport& report) {
  std::string out = "sample,name,truth,prediction,confidence,truth_confidence,loss\n";
  for (const auto& [mistake, name, picture] : report.mistakes) {
    const Judgement& said = mistake.judgement;
    out += concat(mistake.sample, ',', csv_field(name), ',', csv_field(name_of(report, mistake.truth)), ',',
                  csv_field(name_of(report, said.prediction)), ',', shortest(said.confidence), ',',
                  shortest(said.truth_confidence), ',', shortest(said.loss), '\n');
  }
  return out;
}

}  // namespace

void write_evaluation(const fs::path& folder, const EvaluationReport& report) {
  TESSERA_CHECK_EQ(report.classes.size(), report.figures.classes.size());
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    user_error({.where = "monitor.evaluation",
                .problem = concat("cannot create folder ", folder.string(), ": ", failed.message()),
                .hint = "choose another --output-dir"});
  }
  write_file_atomic(folder / kMetricsFile, metrics_json(report));
  write_file_atomic(folder / kPerClassFile, per_class_csv(report));
  if (report.figures.confusion.empty()) {
    fs::remove(folder / kConfusionFile, failed);
  } else {
    write_file_atomic(folder / kConfusionFile, confusion_csv(report));
  }
  write_file_atomic(folder / kMistakesFile, mistakes_csv(report));
  write_file_atomic(folder / kPageFile, evaluation_page(report));
}

}  // namespace tessera::monitor
