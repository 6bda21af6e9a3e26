// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"
#include "tessera/monitor/series.h"

namespace tessera::monitor {

std::string card(std::string_view label, const std::string& value, std::string_view unit,
                 const std::string& below) {
  return concat("<div class=\"card\"><span class=\"label\">", label, "</span><span class=\"value\">", value,
                unit.empty() ? "" : concat("<small>", unit, "</small>"), "</span><span class=\"below\">",
                below, "</span></div>\n");
}

namespace {

std::string accuracy_card(const ReportInput& input) {
  if (input.evals.empty()) return "";
  const EvalMetrics& last = input.evals.back();
  const auto best = std::max_element(input.evals.begin(), input.evals.end(),
                                     [](const auto& a, const auto& b) { return a.top1 < b.top1; });
  const std::string below = best->top1 > last.top1
                                ? concat("best ", fixed(best->top1, 2), " % at epoch ", fixed(best->epoch, 1))
                                : concat("top-5 ", fixed(last.top5, 2), " %");
  return card("Top-1 accuracy", fixed(last.top1, 2), "%", below);
}

std::string loss_card(const ReportInput& input) {
  std::string training;
  if (!input.steps.empty()) {
    const double loss = input.steps.back().loss;
    training = std::isfinite(loss) ? fixed(loss, 4) : print("%f", loss);
  }
  if (input.evals.empty())
    return training.empty() ? "" : card("Training loss", training, "", "last logged step");
  return card("Validation loss", fixed(input.evals.back().loss, 4), "",
              training.empty() ? "" : "training " + training);
}

// The middle of all rows: slow first steps and pauses do not count.
template <typename Value>
double median(const ReportInput& input, const Value& value) {
  std::vector<double> values;
  for (const auto& row : input.steps) values.push_back(value(row));
  return quantile(std::move(values), 0.5);
}

std::string speed_card(const ReportInput& input) {
  if (input.steps.empty()) return "";
  const double images = median(input, [](const StepMetrics& m) { return m.images_per_second; });
  const double tflops = median(input, [](const StepMetrics& m) { return m.tflops; });
  return card("Throughput", fixed(images, images < 100 ? 1 : 0), "images/s",
              tflops > 0 ? print("%.3g TFLOP/s", tflops) : "median");
}

std::string time_card(const ReportInput& input) {
  if (input.steps.empty()) return "";
  const StepMetrics& last = input.steps.back();
  const std::string steps = human_count(last.step) + (last.step == 1 ? " step, " : " steps, ") +
                            print(last.epoch < 1 ? "%.2g" : "%.4g", last.epoch) + " epochs";
  return card("Training time", std::isfinite(last.seconds) ? human_seconds(last.seconds) : "–", "", steps);
}

std::string waiting_card(const ReportInput& input) {
  if (input.steps.empty()) return "";
  double data = 0, ranks = 0;
  for (const auto& row : input.steps) {
    data += std::isfinite(row.data_wait) ? row.data_wait : 0;
    ranks += std::isfinite(row.comm_wait) ? row.comm_wait : 0;
  }
  const double percent = 100 / static_cast<double>(input.steps.size());
  if (data <= 0 && ranks <= 0) return "";
  return card("Waiting", fixed((data + ranks) * percent, 1), "%",
              concat("data ", fixed(data * percent, 1), " · ranks ", fixed(ranks * percent, 1)));
}

std::string memory_card(const ReportInput& input) {
  Range range;
  for (const auto& row : input.steps) range.add(row.memory_bytes);
  if (range.empty || range.high <= 0) return "";
  const std::string text = human_bytes(range.high);
  const size_t space = text.find(' ');
  return card("Peak memory", text.substr(0, space), text.substr(space + 1), "resident, one rank");
}

std::string skipped_card(const ReportInput& input) {
  if (input.skipped_steps == 0) return "";
  return card("Skipped steps", human_count(input.skipped_steps), "", "by the guard or the loss scale");
}

}  // namespace

std::string cards_part(const ReportInput& input) {
  const std::string cards = accuracy_card(input) + loss_card(input) + speed_card(input) + time_card(input) +
                            memory_card(input) + waiting_card(input) + skipped_card(input);
  return cards.empty() ? "" : "<div class=\"cards\">\n" + cards + "</div>\n";
}

}  // namespace tessera::monitor
