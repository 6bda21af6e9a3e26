// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {
namespace {

constexpr size_t kMostClasses = 40;  // of a heat map
constexpr size_t kMostPairs = 30;

// The matrix with a name for each class, whatever the lengths of its rows.
struct Confusion {
  explicit Confusion(const ReportInput& given) : input(given), size(given.confusion.size()) {
    for (const auto& row : input.confusion) size = std::max(size, row.size());
    for (size_t truth = 0; truth < size; ++truth) {
      totals.push_back(0);
      for (size_t prediction = 0; prediction < size; ++prediction) totals.back() += at(truth, prediction);
    }
  }
  int64_t at(size_t truth, size_t prediction) const {
    if (truth >= input.confusion.size() || prediction >= input.confusion[truth].size()) return 0;
    return input.confusion[truth][prediction];
  }
  double share(size_t truth, size_t prediction) const {
    const auto total = static_cast<double>(totals[truth]);
    return total > 0 ? static_cast<double>(at(truth, prediction)) / total : 0;
  }
  std::string name(size_t index) const {
    return index < input.classes.size() ? escape_html(input.classes[index])
                                        : "class " + std::to_string(index);
  }

  const ReportInput& input;
  size_t size;
  std::vector<int64_t> totals;  // of each truth
};

std::string cell(const Confusion& confusion, size_t truth, size_t prediction) {
  const int64_t count = confusion.at(truth, prediction);
  if (count == 0) return "<td class=\"none\">·</td>";
  const double share = confusion.share(truth, prediction);
  const bool right = truth == prediction;
  // Errors are few: the root of their share, full at a quarter, makes them seen.
  const double strength = right ? share : std::min(1.0, std::sqrt(share / 0.25));
  return concat("<td class=\"", right ? "hit" : "miss", strength > (right ? 0.75 : 0.87) ? " strong" : "",
                "\" style=\"--v:", print("%.2f", strength), "\" title=\"", confusion.name(truth),
                " taken for ", confusion.name(prediction), ": ", human_count(count), " (",
                print("%.1f", 100 * share), " %)\">", count, "</td>");
}

std::string heat_map(const Confusion& confusion) {
  const char* density = confusion.size > 20 ? " dense" : confusion.size > 12 ? " close" : "";
  std::string out = concat("<div class=\"scroll\"><table class=\"heat", density,
                           "\">\n<thead><tr><th class=\"corner\">", "truth ↓ <span>prediction →</span></th>");
  for (size_t c = 0; c < confusion.size; ++c) {
    out += concat("<th scope=\"col\"><span>", confusion.name(c), "</span></th>");
  }
  out += "<th scope=\"col\" class=\"recall\"><span>recall</span></th></tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < confusion.size; ++r) {
    out += concat("<tr><th scope=\"row\" title=\"", confusion.name(r), "\">", confusion.name(r), "</th>");
    for (size_t c = 0; c < confusion.size; ++c) out += cell(confusion, r, c);
    out += concat("<td class=\"recall\">", print("%.1f", 100 * confusion.share(r, r)), " %</td></tr>\n");
  }
  return out + "</tbody></table></div>\n";
}

std::string pairs(const Confusion& confusion) {
  struct Pair {
    size_t truth, prediction;
    int64_t count;
  };
  std::vector<Pair> all;
  for (size_t r = 0; r < confusion.size; ++r) {
    for (size_t c = 0; c < confusion.size; ++c) {
      if (r != c && confusion.at(r, c) > 0) all.push_back({r, c, confusion.at(r, c)});
    }
  }
  if (all.empty()) return "<p class=\"empty\">No image was taken for another class.</p>\n";
  const size_t shown = std::min(all.size(), kMostPairs);
  std::partial_sort(
      all.begin(), all.begin() + static_cast<ptrdiff_t>(shown), all.end(), [](const Pair& a, const Pair& b) {
        return std::tie(b.count, a.truth, a.prediction) < std::tie(a.count, b.truth, b.prediction);
      });
  double largest = 0;
  for (size_t i = 0; i < shown; ++i) {
    largest = std::max(largest, confusion.share(all[i].truth, all[i].prediction));
  }
  std::string out =
      "<table class=\"pairs\"><thead><tr><th>Truth</th><th>taken for</th><th class=\"n\">images</th>"
      "<th>of the class</th></tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < shown; ++i) {
    const double share = confusion.share(all[i].truth, all[i].prediction);
    out += concat("<tr><td>", confusion.name(all[i].truth), "</td><td>", confusion.name(all[i].prediction),
                  "</td><td class=\"n\">", human_count(all[i].count),
                  "</td><td class=\"share\"><span><i style=\"width:", print("%.1f", 100 * share / largest),
                  "%\"></i></span>", print("%.1f", 100 * share), " %</td></tr>\n");
  }
  return out + "</tbody></table>\n";
}

}  // namespace

std::string confusion_part(const ReportInput& input) {
  const Confusion confusion(input);
  int64_t all = 0, right = 0;
  for (size_t i = 0; i < confusion.size; ++i) {
    all += confusion.totals[i];
    right += confusion.at(i, i);
  }
  if (all == 0) return "";
  const std::string sum = human_count(right) + " of " + human_count(all) + " test images right";
  if (confusion.size > kMostClasses) {
    return section("confusion", "Most confused classes", sum, pairs(confusion));
  }
  return section("confusion", "Confusion matrix", sum, heat_map(confusion));
}

}  // namespace tessera::monitor
