// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/prepare/inspect_page.h"

namespace tessera::prepare {
namespace {

using monitor::escape_html;
using monitor::print;
using monitor::section;

constexpr size_t kMostBars = 60, kMostBroken = 200;

std::vector<size_t> by_count(const Inspection& inspection) {
  std::vector<size_t> order(inspection.classes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return inspection.class_counts[a] > inspection.class_counts[b];
  });
  return order;
}

std::string bar(const Inspection& inspection, size_t label, double most) {
  const auto count = inspection.class_counts[label];
  return concat("<tr><td>", escape_html(inspection.classes[label]), "</td><td class=\"n\">",
                human_count(count), "</td><td class=\"wide\"><span class=\"share\"><span><i style=\"width:",
                print("%.1f", 100 * static_cast<double>(count) / std::max(1.0, most)),
                "%\"></i></span></span></td></tr>\n");
}

/// A line that falls from the largest class to the smallest.
std::string profile(const Inspection& inspection, const std::vector<size_t>& order, double most) {
  std::string points = "0,100";
  const double step = 1000.0 / static_cast<double>(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const double y = 100 - 100 * static_cast<double>(inspection.class_counts[order[i]]) / std::max(1.0, most);
    points +=
        print(" %.2f,%.2f %.2f,%.2f", step * static_cast<double>(i), y, step * static_cast<double>(i + 1), y);
  }
  return concat(
      "<figure class=\"chart profile\"><svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" "
      "role=\"img\" aria-label=\"samples of each class\"><polygon points=\"",
      points, " 1000,100\"/></svg><figcaption><span>", escape_html(inspection.classes[order.front()]), ": ",
      human_count(inspection.class_counts[order.front()]), "</span><span>",
      escape_html(inspection.classes[order.back()]), ": ", human_count(inspection.class_counts[order.back()]),
      "</span></figcaption></figure>\n");
}

using Cells = std::map<std::pair<int, int>, int64_t>;

int cell_of(int64_t side) { return static_cast<int>(std::floor(4 * std::log2(static_cast<double>(side)))); }

/// Four cells an octave in both directions; darker where there are more.
std::string size_map(const Cells& cells) {
  int low = 1000, high = 0;
  int64_t most = 1;
  for (const auto& [place, count] : cells) {
    low = std::min({low, place.first, place.second});
    high = std::max({high, place.first, place.second});
    most = std::max(most, count);
  }
  low = low / 4 * 4;
  high = std::max(low + 8, high / 4 * 4 + 4);
  const int side = high - low;
  std::string marks, labels;
  for (int at = low; at <= high; at += 4) {
    const double percent = 100.0 * (at - low) / side;
    marks += concat("<path d=\"M", at - low, " 0V", side, "M0 ", side - (at - low), "H", side, "\"/>");
    if (side > 28 && at / 4 % 2 != 0) continue;  // room for every second one
    labels += concat("<span class=\"h\" style=\"left:", print("%.2f", percent), "%\">", 1 << (at / 4),
                     "</span><span class=\"v\" style=\"bottom:", print("%.2f", percent), "%\">",
                     1 << (at / 4), "</span>");
  }
  std::string rects;
  for (const auto& [place, count] : cells) {
    const double shade =
        0.18 + 0.82 * std::log1p(static_cast<double>(count)) / std::log1p(static_cast<double>(most));
    rects +=
        concat("<rect x=\"", place.first - low, "\" y=\"", side - 1 - (place.second - low),
               "\" width=\"1\" height=\"1\" opacity=\"", print("%.2f", shade), "\"><title>",
               std::lround(std::exp2(place.first / 4.0)), " × ", std::lround(std::exp2(place.second / 4.0)),
               " and more: ", human_count(count), "</title></rect>");
  }
  return concat(
      "<figure class=\"chart sizes\"><figcaption><h3>Width × height <small>pixels, both "
      "logarithmic</small></h3>"
      "</figcaption><div class=\"square\"><svg viewBox=\"0 0 ",
      side, " ", side, "\"><g class=\"grid\">", marks, "</g><path class=\"diagonal\" d=\"M0 ", side, "L",
      side, " 0\"/>", rects, "</svg>", labels, "</div></figure>\n");
}

/// Two columns an octave; four where there are few octaves.
std::string byte_columns(const Inspection& inspection) {
  const Spread spread =
      spread_of(values_of(inspection, [](const Seen& seen) { return static_cast<int64_t>(seen.bytes); }));
  const double low = std::max<double>(1, static_cast<double>(spread.least));
  const double octave = static_cast<double>(spread.most) / low > 64 ? 2 : 4;
  std::map<int, int64_t> columns;
  for (const Seen& seen : inspection.seen) {
    ++columns[static_cast<int>(
        std::floor(octave * std::log2(std::max<double>(1, static_cast<double>(seen.bytes)))))];
  }
  int64_t most = 1;
  for (const auto& [at, count] : columns) most = std::max(most, count);
  std::string out;
  for (int at = columns.begin()->first; at <= columns.rbegin()->first; ++at) {
    const auto found = columns.find(at);
    const int64_t count = found == columns.end() ? 0 : found->second;
    const std::string from = human_bytes(std::round(std::exp2(at / octave)));
    out +=
        concat("<div title=\"from ", from, ": ", human_count(count), "\"><i style=\"height:",
               print("%.1f", 100 * static_cast<double>(count) / static_cast<double>(most)), "%\"></i></div>");
  }
  return concat(
      "<figure class=\"chart\"><figcaption><h3>Bytes <small>of a sample's file, logarithmic</small></h3>"
      "</figcaption><div class=\"columns\">",
      out, "</div><div class=\"ends\"><span>", human_bytes(static_cast<double>(spread.least)),
      "</span><span>", human_bytes(static_cast<double>(spread.most)), "</span></div></figure>\n");
}

}  // namespace

std::string counts_part(const Inspection& inspection) {
  if (inspection.classes.empty()) return "";
  const auto order = by_count(inspection);
  const auto most = static_cast<double>(inspection.class_counts[order[0]]);
  std::string body;
  if (order.size() > kMostBars) {
    body = profile(inspection, order, most);
  } else {
    for (const size_t label : order) body += bar(inspection, label, most);
    body = "<table class=\"pairs\">" + body + "</table>\n";
  }
  return section("counts", "Samples of each class", "the largest first", body);
}

std::string sizes_part(const Inspection& inspection) {
  if (inspection.seen.empty()) return "";
  Cells cells;
  for (const Seen& seen : inspection.seen) ++cells[{cell_of(seen.width), cell_of(seen.height)}];
  return section("sizes", "Sizes", "",
                 "<div class=\"charts\">\n" + size_map(cells) + byte_columns(inspection) + "</div>\n");
}

std::string broken_part(const Inspection& inspection) {
  std::string rows;
  const size_t shown = std::min(inspection.broken.size(), kMostBroken);
  for (size_t i = 0; i < shown; ++i) {
    rows += concat("<li><b>", escape_html(inspection.broken[i].name), "</b><span>",
                   escape_html(inspection.broken[i].reason), "</span></li>\n");
  }
  const std::string aside =
      concat(human_count(static_cast<int64_t>(inspection.broken.size())), " of ",
             human_count(static_cast<int64_t>(inspection.seen.size() + inspection.broken.size())),
             shown < inspection.broken.size() ? concat("; the first ", shown) : "");
  return section("broken", "Broken samples", aside,
                 rows.empty() ? "" : "<ul class=\"broken\">\n" + rows + "</ul>\n");
}

}  // namespace tessera::prepare
