// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/chart.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostPoints = 700;
constexpr double kSide = 1000;  // of the drawing, stretched to the place it gets

struct Frame {
  Axis x, y;
  double across(double value) const { return (value - x.low) / (x.high - x.low); }
  double down(double value) const { return 1 - std::clamp((value - y.low) / (y.high - y.low), 0.0, 1.0); }
};

Range y_range(const Chart& chart) {
  Range range;
  for (const auto& curve : chart.curves) {
    for (const double value : curve.points.y) range.add(value);
  }
  if (range.empty) return range;
  if (chart.top > 0) range.high = std::min(range.high, chart.top);
  // A curve that comes near zero is shown down to it: heights then compare.
  if (chart.from_zero || (range.low > 0 && range.low < range.high / 3)) range.low = std::min(range.low, 0.0);
  return range;
}

Frame make_frame(const Chart& chart, const Range& y) {
  Range x;
  x.add(chart.last_step);
  for (const auto& curve : chart.curves) {
    if (!curve.points.x.empty()) x.add(curve.points.x.front());
  }
  if (x.low <= std::max(1.0, x.high / 4)) x.low = std::min(x.low, 0.0);
  return {make_axis(x.low, x.high, 5, true), make_axis(y.low, y.high, 5, false)};
}

std::string at(double share) { return print("%.4g", std::round(share * kSide * 10) / 10); }

// One move and line per stretch of finite points; a lone point becomes a dot through the line's round ends.
std::string path_of(const Points& points, const Frame& frame, bool dots) {
  std::string path;
  bool open = false;
  for (size_t i = 0; i < points.x.size(); ++i) {
    if (!std::isfinite(points.y[i])) {
      open = false;
      continue;
    }
    const bool alone = i + 1 == points.x.size() || !std::isfinite(points.y[i + 1]);
    path += (open && !dots ? "L" : "M") + at(frame.across(points.x[i])) + " " + at(frame.down(points.y[i]));
    if (dots || (!open && alone)) path += "h.01";
    open = true;
  }
  return path;
}

std::string area_of(const Points& points, const Frame& frame) {
  std::string path;
  for (size_t i = 0; i < points.x.size(); ++i) {
    if (!std::isfinite(points.y[i])) continue;
    if (path.empty()) path = "M" + at(frame.across(points.x[i])) + " 1000";
    path += "L" + at(frame.across(points.x[i])) + " " + at(frame.down(points.y[i]));
  }
  return path + "V1000Z";
}

std::string draw(const Curve& curve, const Frame& frame) {
  const auto path = [&](const char* kind, const std::string& data) {
    return concat("<path class=\"", kind, " ", curve.colour, "\" d=\"", data, "\"/>\n");
  };
  const auto& values = curve.points.y;
  const auto finite = std::count_if(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
  if (finite == 0) return "";
  std::string out;
  if (curve.style == Curve::kArea) out += path("area", area_of(curve.points, frame));
  out += path(curve.style == Curve::kFaint ? "faint" : "line", path_of(curve.points, frame, false));
  // A single point is no line one could see.
  if (curve.style == Curve::kDots || finite == 1) out += path("dots", path_of(curve.points, frame, true));
  return out;
}

std::string grid(const Frame& frame) {
  std::string path;
  for (const double tick : frame.y.ticks) path += "M0 " + at(frame.down(tick)) + "H1000";
  return "<path class=\"grid\" d=\"" + path + "\"/>\n";
}

std::string labels(const Frame& frame) {
  std::string out = "<div class=\"y\">";
  for (const double tick : frame.y.ticks) {
    out += print("<span style=\"top:%.2f%%\">", 100 * frame.down(tick)) + tick_text(tick, frame.y.spacing) +
           "</span>";
  }
  out += "</div>\n<div class=\"x\">";
  for (const double tick : frame.x.ticks) {
    const double left = 100 * frame.across(tick);
    out += print("<span style=\"left:%.2f%%\"%s>", left, left > 96 ? " class=\"last\"" : "") +
           tick_text(tick, frame.x.spacing) + "</span>";
  }
  return out + "</div>\n";
}

// The numbers behind the drawing, for the read-out under the pointer.
std::string numbers(const Chart& chart, const std::vector<Curve>& curves, const Frame& frame) {
  const auto list = [](const std::vector<double>& values) {
    std::vector<std::string> words;
    for (const double value : values) words.push_back(std::isfinite(value) ? print("%.6g", value) : "null");
    return "[" + join(words, ",") + "]";
  };
  std::string out = print("<script type=\"application/json\">{\"low\":%.10g,\"high\":%.10g,\"epochs\":%.8g,",
                          frame.x.low, frame.x.high, chart.epochs_per_step) +
                    concat("\"across\":\"", escape(chart.across), "\",\"curves\":[");
  for (size_t i = 0; i < curves.size(); ++i) {
    out += concat(i == 0 ? "" : ",", "{\"name\":\"", escape(curves[i].name), "\",\"colour\":\"",
                  curves[i].colour, "\",\"x\":", list(curves[i].points.x),
                  ",\"y\":", list(curves[i].points.y), "}");
  }
  return out + "]}</script>\n";
}

std::string legend(const Chart& chart) {
  if (chart.curves.size() < 2) return "";
  std::string out = "<span class=\"legend\">";
  for (const auto& curve : chart.curves) {
    out += concat("<span><i class=\"", curve.colour, curve.style == Curve::kFaint ? " pale" : "", "\"></i>",
                  escape_html(curve.name), "</span>");
  }
  return out + "</span>";
}

}  // namespace

std::string render(const Chart& chart) {
  const Range y = y_range(chart);
  if (y.empty) return "";
  const Frame frame = make_frame(chart, y);
  std::vector<Curve> curves = chart.curves;
  std::string drawing = grid(frame);
  for (auto& curve : curves) {
    curve.points = thin(curve.points, kMostPoints);
    drawing += draw(curve, frame);
  }
  const std::string title = escape_html(chart.title);
  const std::string unit = chart.unit.empty() ? "" : " <small>" + escape_html(chart.unit) + "</small>";
  const std::string note =
      chart.note.empty() ? "" : "<p class=\"note\">" + escape_html(chart.note) + "</p>\n";
  const std::string reading =
      concat(title, " over ", human_count(std::llround(chart.last_step)), " ", chart.across, ", between ",
             tick_text(y.low, frame.y.spacing / 100), " and ", tick_text(y.high, frame.y.spacing / 100));
  return concat("<figure class=\"chart\">\n<figcaption><h3>", title, unit, "</h3>", legend(chart),
                "</figcaption>\n<div class=\"frame\">\n", labels(frame), "<div class=\"plot\">",
                "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
                reading, "\">\n", drawing,
                "</svg><i class=\"cursor\"></i><div class=\"tip\"></div></div>\n</div>\n", note,
                numbers(chart, curves, frame), "</figure>\n");
}

}  // namespace tessera::monitor
