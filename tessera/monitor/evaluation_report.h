// SPDX-License-Identifier: Apache-2.0
// What an evaluation leaves in a folder: figures, tables, a page. No LibTorch.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/monitor/classification.h"
#include "tessera/monitor/report.h"

namespace tessera::monitor {

struct EvaluationReport {
  std::string title;                                       // recipe's name
  std::string checkpoint, split;                           // what was evaluated, on what
  std::vector<std::pair<std::string, std::string>> facts;  // for the page, in order
  ClassificationFigures figures;
  std::vector<std::string> classes;  // names, one for each class of the model
  struct Shown {
    Mistake mistake;
    std::string name;          // the sample's, as its source has it
    PredictionSample picture;  // without pixels: shown as a blank
  };
  std::vector<Shown> mistakes;  // worst first
};

/// The names of files in the folder.
inline constexpr const char *kMetricsFile = "metrics.json", *kPerClassFile = "per_class.csv",
                            *kConfusionFile = "confusion.csv", *kMistakesFile = "mistakes.csv",
                            *kPageFile = "report.html";

/// Writes, each atomically, into `folder`, which is made:
///   metrics.json   top-1, top-5, loss, mean accuracy of a class, calibration error and its bins
///   per_class.csv  class,name,samples,correct,accuracy,precision
///   confusion.csv  a row for each truth, a column for each prediction (where it was counted)
///   mistakes.csv   sample,name,truth,prediction,confidence,truth_confidence,loss
///   report.html    the same to look at, self-contained, with the mistakes as pictures
/// A confusion.csv of an earlier evaluation is removed where there is none now.
/// Errors: UserError with path and reason.
void write_evaluation(const std::filesystem::path& folder, const EvaluationReport& report);

}  // namespace tessera::monitor
