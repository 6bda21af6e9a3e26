// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/evaluation_page.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostRows = 100;  // of the table of classes

std::string cards(const ClassificationFigures& figures) {
  return concat(
      "<div class=\"cards\">\n",
      card("Top-1 accuracy", fixed(figures.top1, 2), "%", concat("top-5 ", fixed(figures.top5, 2), " %")),
      card("Mean of the classes", fixed(figures.mean_class_accuracy, 2), "%", "every class counts alike"),
      card("Loss", fixed(figures.loss, 4), "", "cross entropy, nats"),
      card("Calibration error", fixed(figures.calibration_error, 2), "%",
           concat("expected, ", kCalibrationBins, " bins")),
      card("Images", human_count(figures.samples), "",
           figures.broken > 0 ? concat(human_count(figures.broken), " broken, counted as wrong")
                              : "each counted once"),
      "</div>\n");
}

std::string mistakes_part(const EvaluationReport& report) {
  std::vector<PredictionSample> pictures;
  for (const auto& shown : report.mistakes) pictures.push_back(shown.picture);
  const Tiles worst = tiles(pictures);
  if (worst.shown == 0) return "";
  return section(
      "mistakes", "Worst mistakes",
      concat("the ", worst.shown, " images with the largest loss; percent: how sure the model was"),
      "<div class=\"tiles\">\n" + worst.html + "</div>\n");
}

/// A table cell with a bar; `percent` may be NaN.
std::string bar_cell(double percent) {
  const double width = std::isfinite(percent) ? std::clamp(percent, 0.0, 100.0) : 0;
  return concat("<td class=\"share\"><div><span><i style=\"width:", print("%.1f", width), "%\"></i></span>",
                std::isfinite(percent) ? concat(print("%.1f", percent), " %") : "–", "</div></td>");
}

std::string calibration_part(const ClassificationFigures& figures) {
  std::string rows;
  for (size_t i = 0; i < figures.bins.size(); ++i) {
    const auto& bin = figures.bins[i];
    if (bin.samples == 0) continue;
    const auto percent = [](double part) { return 100 * part / kCalibrationBins; };
    rows += concat("<tr><td>", print("%.1f", percent(static_cast<double>(i))), " – ",
                   print("%.1f", percent(static_cast<double>(i + 1))), " %</td><td class=\"n\">",
                   human_count(bin.samples), "</td>", bar_cell(100 * bin.confidence),
                   bar_cell(100 * static_cast<double>(bin.correct) / static_cast<double>(bin.samples)),
                   "</tr>\n");
  }
  if (rows.empty()) return "";
  return section("calibration", "Calibration", "is the model right as often as it is sure?",
                 concat("<table class=\"pairs\"><thead><tr><th>Confidence</th><th class=\"n\">images</th>"
                        "<th>mean confidence</th><th>right</th></tr></thead>\n<tbody>\n",
                        rows, "</tbody></table>\n"));
}

/// All classes in their order, or of many the least accurate ones first.
std::vector<size_t> classes_to_show(const ClassificationFigures& figures) {
  std::vector<size_t> order(figures.classes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (order.size() <= kMostRows) return order;
  std::erase_if(order, [&](size_t i) { return figures.classes[i].samples == 0; });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return figures.classes[a].accuracy() < figures.classes[b].accuracy();
  });
  order.resize(std::min(order.size(), kMostRows));
  return order;
}

std::string classes_part(const EvaluationReport& report) {
  const auto& classes = report.figures.classes;
  const std::vector<size_t> order = classes_to_show(report.figures);
  std::string rows;
  for (const size_t i : order) {
    rows += concat("<tr><td>", escape_html(report.classes.at(i)), "</td><td class=\"n\">",
                   human_count(classes[i].samples), "</td>", bar_cell(classes[i].accuracy()),
                   bar_cell(classes[i].precision()), "</tr>\n");
  }
  if (rows.empty()) return "";
  const std::string aside =
      order.size() < classes.size() ? concat("the ", order.size(), " least accurate") : "";
  return section("classes", "Classes", aside,
                 concat("<table class=\"pairs\"><thead><tr><th>Class</th><th class=\"n\">images</th>"
                        "<th>recall</th><th>precision</th></tr></thead>\n<tbody>\n",
                        rows, "</tbody></table>\n"));
}

}  // namespace

std::string evaluation_page(const EvaluationReport& report) {
  ReportInput input;  // what the parts shared with a run's report look at
  input.title = report.title;
  input.classes = report.classes;
  input.confusion = report.figures.confusion;
  input.facts = report.facts;
  const std::string about =
      concat(human_count(report.figures.samples), " images of ", escape_html(report.split), ", ",
             human_count(static_cast<int64_t>(report.classes.size())), " classes");
  return page(report.title,
              concat(page_header("Tessera evaluation", report.title, about), cards(report.figures),
                     mistakes_part(report), confusion_part(input), classes_part(report),
                     calibration_part(report.figures), facts_part(input)));
}

}  // namespace tessera::monitor
