// SPDX-License-Identifier: Apache-2.0
// The picture of statistics.jsonl: a row per unit, a column per step, darker where the numbers are larger.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"
#include "tessera/monitor/series.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostColumns = 48;
constexpr size_t kMostLabels = 20;
constexpr double kDecades = 6;  // between the palest and the darkest: numbers smaller than that look alike

/// "blocks.3" of "blocks.3.attn.qkv.weight", "layer1.0" of "layer1.0.conv1.weight", "head" of "head.bias".
std::string unit_of(const std::string& tensor) {
  size_t begin = 0;
  while (begin < tensor.size()) {
    const size_t end = std::min(tensor.find('.', begin), tensor.size());
    const std::string_view part = std::string_view(tensor).substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return tensor.substr(0, end);
    }
    begin = end + 1;
  }
  return tensor.substr(0, tensor.find('.'));
}

struct Cell {
  double rms = 0;
  bool not_finite = false;
};

/// [unit][column]; a column is a step, or several where there are many.
struct Map {
  std::vector<std::string> units;  // in forward order
  std::vector<std::vector<Cell>> cells;
  double first_step = 0, last_step = 0;
  double low = 0, high = 0;  // of what is above 0; both 0 where nothing is
};

/// Root of the mean square over a unit's tensors, each counting the same: their sizes are not in the file.
std::map<std::string, Cell> units_of_step(const StepTensors& step, const std::string& kind,
                                          std::vector<std::string>& order) {
  std::map<std::string, Cell> found;
  std::map<std::string, int64_t> counts;
  for (const TensorStatistics& tensor : step.tensors) {
    if (tensor.kind != kind) continue;
    const std::string unit = unit_of(tensor.name);
    if (std::find(order.begin(), order.end(), unit) == order.end()) order.push_back(unit);
    Cell& cell = found[unit];
    cell.not_finite = cell.not_finite || tensor.not_finite > 0 || !std::isfinite(tensor.rms);
    if (!std::isfinite(tensor.rms)) continue;
    cell.rms += tensor.rms * tensor.rms;
    ++counts[unit];
  }
  for (auto& [unit, cell] : found)
    cell.rms = std::sqrt(cell.rms / static_cast<double>(std::max<int64_t>(1, counts[unit])));
  return found;
}

Map make_map(const std::vector<StepTensors>& steps, const std::string& kind) {
  Map map;
  const size_t columns = std::min(steps.size(), kMostColumns);
  Range range;
  std::vector<std::map<std::string, Cell>> found(columns);
  for (size_t i = 0; i < steps.size(); ++i) {
    auto& column = found[i * columns / steps.size()];
    for (const auto& [unit, cell] : units_of_step(steps[i], kind, map.units)) {
      Cell& shown = column[unit];  // the largest of a column: spikes stay
      shown.rms = std::max(shown.rms, cell.rms);
      shown.not_finite = shown.not_finite || cell.not_finite;
      if (cell.rms > 0) range.add(cell.rms);
    }
  }
  for (const std::string& unit : map.units) {
    auto& row = map.cells.emplace_back();
    for (auto& column : found) row.push_back(column[unit]);
  }
  if (steps.empty()) return map;
  map.first_step = static_cast<double>(steps.front().step);
  map.last_step = static_cast<double>(steps.back().step);
  if (range.empty) return map;
  map.high = range.high;
  map.low = std::max(range.low, range.high * std::pow(10.0, -kDecades));
  return map;
}

/// 0 to 1, by the logarithm.
double strength(const Map& map, double rms) {
  if (rms <= map.low) return 0;
  return std::log(rms / map.low) / std::log(map.high / map.low);
}

std::string row_of(const Map& map, size_t row, double width, double height) {
  Range range;
  std::string cells;
  for (size_t column = 0; column < map.cells[row].size(); ++column) {
    const Cell& cell = map.cells[row][column];
    range.add(cell.rms);
    // A little wider than its place, else the ground shines through between two.
    cells +=
        print("<rect x=\"%.4g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\" ",
              width * static_cast<double>(column), height * static_cast<double>(row), width + 0.5, height) +
        (cell.not_finite ? std::string("class=\"bad\"")
                         : print("fill-opacity=\"%.2g\"", 0.06 + 0.94 * strength(map, cell.rms))) +
        "/>";
  }
  return concat("<g><title>", escape_html(map.units[row]), print(": %.3g to %.3g", range.low, range.high),
                "</title>", cells, "</g>\n");
}

std::string labels(const Map& map) {
  const size_t rows = map.units.size(), every = (rows + kMostLabels - 1) / kMostLabels;
  std::string out = "<div class=\"y\">";
  for (size_t row = 0; row < rows; row += every) {
    out += print("<span style=\"top:%.2f%%\">",
                 100 * (static_cast<double>(row) + 0.5) / static_cast<double>(rows)) +
           escape_html(map.units[row]) + "</span>";
  }
  out += "</div>\n<div class=\"x\"><span style=\"left:0\" class=\"first\">step " +
         human_count(std::llround(map.first_step)) + "</span>";
  if (map.last_step > map.first_step) {
    out += "<span style=\"left:100%\" class=\"end\">" + human_count(std::llround(map.last_step)) + "</span>";
  }
  return out + "</div>\n";
}

std::string figure(const std::vector<StepTensors>& steps, const std::string& kind, const std::string& title,
                   const std::string& unit) {
  const Map map = make_map(steps, kind);
  if (map.units.empty()) return "";
  const size_t rows = map.units.size();
  const double width = 1000.0 / static_cast<double>(map.cells[0].size()),
               height = 1000.0 / static_cast<double>(rows);
  std::string drawing;
  bool bad = false;
  for (size_t row = 0; row < rows; ++row) {
    drawing += row_of(map, row, width, height);
    for (const Cell& cell : map.cells[row]) bad = bad || cell.not_finite;
  }
  const std::string scale = concat("<span class=\"legend\"><span>", print("%.2g", map.low),
                                   "<i class=\"scale\"></i>", print("%.2g", map.high), "</span>",
                                   bad ? "<span><i class=\"bad\"></i>not finite</span>" : "", "</span>");
  return concat("<figure class=\"units\">\n<figcaption><h3>", title, " <small>", unit, "</small></h3>", scale,
                "</figcaption>\n<div class=\"frame\" style=\"height:",
                std::max<size_t>(rows * (rows > kMostLabels ? 11U : 16U), 48), "px\">\n", labels(map),
                "<div class=\"plot\"><svg viewBox=\"0 0 1000 1000\" ",
                "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", title, " of ", rows, " units\">\n",
                drawing, "</svg></div>\n</div>\n</figure>\n");
}

}  // namespace

std::string statistics_part(const ReportInput& input) {
  const std::string figures =
      figure(input.statistics, "activations", "Activations", "what comes out of each unit") +
      figure(input.statistics, "gradients", "Gradients", "mean over each unit's tensors");
  if (figures.empty()) return "";
  return section("units", "Units", "root mean square, darker where larger, by training step",
                 "<div class=\"charts\">\n" + figures + "</div>\n");
}

}  // namespace tessera::monitor
