// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/chart.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {
namespace {

template <typename Row, typename Value>
Points points_of(const std::vector<Row>& rows, const Value& value) {
  Points points;
  for (const auto& row : rows) {
    points.x.push_back(static_cast<double>(row.step));
    points.y.push_back(value(row));
  }
  return points;
}

Chart new_chart(const ReportInput& input, std::string title, std::string unit) {
  Chart chart;
  chart.title = std::move(title);
  chart.unit = std::move(unit);
  for (const auto& row : input.steps) {
    chart.last_step = std::max(chart.last_step, static_cast<double>(row.step));
    if (row.step > 0 && std::isfinite(row.epoch))
      chart.epochs_per_step = row.epoch / static_cast<double>(row.step);
  }
  for (const auto& row : input.evals) {
    chart.last_step = std::max(chart.last_step, static_cast<double>(row.step));
    if (input.steps.empty() && row.step > 0 && std::isfinite(row.epoch)) {
      chart.epochs_per_step = row.epoch / static_cast<double>(row.step);
    }
  }
  return chart;
}

// A spike must not flatten all the rest: far above nearly every value, the chart is cut off.
void cut_spikes(Chart& chart, const std::vector<double>& values) {
  const double high = quantile(values, 1.0), usual = quantile(values, 0.98);
  if (!std::isfinite(usual) || usual <= 0 || high < 5 * usual) return;
  chart.top = 1.5 * usual;
  chart.note += "Values above " + print("%.3g", chart.top) + " are cut off; the largest is " +
                print("%.3g", high) + ". ";
}

// The measured values, pale, and what they tend to. Few points need no smoothing.
void add_smoothed(Chart& chart, const Points& points, const std::string& name) {
  if (points.x.size() >= 20) {
    chart.curves.push_back({name, "blue", Curve::kFaint, points});
    Points shown = points;
    // A value that is cut off must not lift its neighbours.
    if (chart.top > 0) {
      for (double& value : shown.y) value = value > chart.top ? chart.top : value;
    }
    chart.curves.push_back({name + ", smoothed", "blue", Curve::kLine, smooth(shown)});
  } else {
    chart.curves.push_back({name, "blue", Curve::kLine, points});
  }
}

void note_gaps(Chart& chart, const Points& points) {
  int64_t gaps = 0;
  double first = 0;
  for (size_t i = 0; i < points.y.size(); ++i) {
    if (std::isfinite(points.y[i])) continue;
    if (gaps++ == 0) first = points.x[i];
  }
  if (gaps == 0) return;
  chart.note += concat("Not a finite number in ", human_count(gaps), " of ",
                       human_count(static_cast<int64_t>(points.y.size())), " rows, first at step ",
                       human_count(std::llround(first)), ". ");
}

// Of the moving average of the weights, where there is one.
void add_average(Chart& chart, const ReportInput& input, const std::string& name,
                 std::optional<double> EvalMetrics::*value) {
  const Points points = points_of(input.evals, [&](const EvalMetrics& m) {
    return (m.*value).value_or(std::numeric_limits<double>::quiet_NaN());
  });
  if (std::isnan(quantile(points.y, 1))) return;
  chart.curves.push_back({name, "violet", Curve::kDots, points});
}

std::string loss_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Loss", "");
  const Points points = points_of(input.steps, [](const StepMetrics& m) { return m.loss; });
  cut_spikes(chart, points.y);
  add_smoothed(chart, points, "training");
  const Points validation = points_of(input.evals, [](const EvalMetrics& m) { return m.loss; });
  if (!validation.x.empty()) chart.curves.push_back({"validation", "orange", Curve::kDots, validation});
  add_average(chart, input, "validation, averaged weights", &EvalMetrics::loss_ema);
  note_gaps(chart, points);
  return render(chart);
}

std::string accuracy_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Accuracy", "% of the test images");
  const Points top1 = points_of(input.evals, [](const EvalMetrics& m) { return m.top1; });
  const Points top5 = points_of(input.evals, [](const EvalMetrics& m) { return m.top5; });
  chart.curves.push_back({"top-1", "green", Curve::kDots, top1});
  add_average(chart, input, "top-1, averaged weights", &EvalMetrics::top1_ema);
  // Few classes: top-5 says nothing and takes the room.
  if (input.classes.size() > 10 || quantile(top5.y, 0) < 90) {
    chart.curves.push_back({"top-5", "grey", Curve::kDots, top5});
  }
  return render(chart);
}

std::string speed_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Throughput", "images/s");
  const Points points = points_of(input.steps, [](const StepMetrics& m) { return m.images_per_second; });
  cut_spikes(chart, points.y);
  add_smoothed(chart, points, "measured");
  chart.from_zero = true;
  return render(chart);
}

// Beside the throughput it says how well the machine is used; without a measured peak, only how fast it is.
std::string compute_chart(const ReportInput& input) {
  Points points = points_of(input.steps, [](const StepMetrics& m) { return 100 * m.peak_share; });
  const bool shares = quantile(points.y, 1) > 0;
  if (!shares) points = points_of(input.steps, [](const StepMetrics& m) { return m.tflops; });
  if (!(quantile(points.y, 1) > 0)) return "";
  Chart chart = shares ? new_chart(input, "Share of peak", "% of the measured rate")
                       : new_chart(input, "Compute", "TFLOP/s");
  cut_spikes(chart, points.y);
  add_smoothed(chart, points, "measured");
  chart.from_zero = true;
  return render(chart);
}

std::string memory_chart(const ReportInput& input) {
  Points points = points_of(input.steps, [](const StepMetrics& m) { return m.memory_bytes; });
  const double most = quantile(points.y, 1);
  if (!(most > 0)) return "";
  const bool large = most >= 1 << 30;
  for (double& value : points.y) value /= large ? 1 << 30 : 1 << 20;
  Chart chart = new_chart(input, "Memory", large ? "GiB resident, one rank" : "MiB resident, one rank");
  chart.curves.push_back({"resident", "green", Curve::kArea, points});
  chart.from_zero = true;
  return render(chart);
}

std::string learning_rate_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Learning rate", "");
  chart.curves.push_back({"learning rate", "violet", Curve::kArea,
                          points_of(input.steps, [](const StepMetrics& m) { return m.learning_rate; })});
  chart.from_zero = true;
  return render(chart);
}

std::string gradient_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Gradient norm", "");
  const Points points = points_of(input.steps, [](const StepMetrics& m) { return m.gradient_norm; });
  if (!(quantile(points.y, 1) > 0)) return "";
  cut_spikes(chart, points.y);
  add_smoothed(chart, points, "measured");
  note_gaps(chart, points);
  return render(chart);
}

std::string waiting_chart(const ReportInput& input) {
  Chart chart = new_chart(input, "Waiting", "% of the time");
  const Points data = points_of(input.steps, [](const StepMetrics& m) { return 100 * m.data_wait; });
  const Points ranks = points_of(input.steps, [](const StepMetrics& m) { return 100 * m.comm_wait; });
  if (!(quantile(data.y, 1) > 0) && !(quantile(ranks.y, 1) > 0)) return "";
  chart.curves.push_back({"for data", "orange", Curve::kLine, smooth(data)});
  chart.curves.push_back({"for other ranks", "blue", Curve::kLine, smooth(ranks)});
  const Points bubble = points_of(input.steps, [](const StepMetrics& m) { return 100 * m.bubble; });
  if (!std::isnan(quantile(bubble.y, 1)))
    chart.curves.push_back({"of these, for other stages", "green", Curve::kLine, smooth(bubble)});
  chart.from_zero = true;
  return render(chart);
}

}  // namespace

std::string charts_part(const ReportInput& input) {
  const std::string charts = loss_chart(input) + accuracy_chart(input) + speed_chart(input) +
                             compute_chart(input) + learning_rate_chart(input) + gradient_chart(input) +
                             waiting_chart(input) + memory_chart(input);
  if (charts.empty()) {
    return section("curves", "Curves", "",
                   "<p class=\"empty\">No step was logged: there is nothing to draw.</p>\n");
  }
  return section("curves", "Curves", "by training step", "<div class=\"charts\">\n" + charts + "</div>\n");
}

}  // namespace tessera::monitor
