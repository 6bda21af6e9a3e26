// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::monitor {
namespace {

constexpr std::array<std::string_view, 10> kNotJudged = {
    "images_per_second", "tflops",     "data_wait",    "comm_wait",    "memory_bytes",
    "seconds",           "peak_share", "seconds_left", "device_bytes", "device_peak_bytes"};

std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields;
  while (true) {
    const size_t comma = line.find(',');
    fields.emplace_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

/// The place of each kind of column in the file.
struct Header {
  std::vector<std::string> fields;
  size_t step = 0;
  std::optional<size_t> kind;

  Header(std::string_view line, const std::string& name) : fields(fields_of(line)) {
    const auto find = [&](std::string_view word) -> std::optional<size_t> {
      const auto at = std::find(fields.begin(), fields.end(), word);
      if (at == fields.end()) return std::nullopt;
      return static_cast<size_t>(at - fields.begin());
    };
    const auto found = find("step");
    if (!found) {
      user_error({.where = "monitor.compare",
                  .problem = concat(name, " has no column \"step\": its first line is \"",
                                    escape(line.substr(0, 80)), "\""),
                  .expected = "the folder of a run, or a CSV file like its metrics.csv"});
    }
    step = *found;
    kind = find("kind");
  }
  bool is_number(size_t field) const { return field != step && field != kind; }
};

template <typename Number>
Number number(const std::string& text, const std::string& name, int64_t line) {
  if (const auto value = parse_number<Number>(text)) return *value;
  user_error({.where = "monitor.compare",
              .problem = concat(name, " has \"", escape(text.substr(0, 40)), "\" in line ", line),
              .expected = "a number"});
}

}  // namespace

Curves parse_curves(std::string_view csv, const std::string& name) {
  const Header header(take_until(csv, "\n"), name);
  Curves curves;
  for (size_t i = 0; i < header.fields.size(); ++i) {
    if (header.is_number(i)) curves.columns.push_back(header.fields[i]);
  }
  for (int64_t line = 2; !csv.empty(); ++line) {
    const std::string_view text = trimmed(take_until(csv, "\n"));
    if (text.empty()) continue;
    const std::vector<std::string> fields = fields_of(text);
    if (fields.size() != header.fields.size()) {
      user_error({.where = "monitor.compare",
                  .problem = concat(name, " has ", fields.size(), " fields in line ", line),
                  .expected = concat(header.fields.size(), " fields, as in the first line")});
    }
    std::vector<std::optional<double>> values;
    for (size_t i = 0; i < fields.size(); ++i) {
      if (!header.is_number(i)) continue;
      values.push_back(fields[i].empty() ? std::nullopt
                                         : std::optional(number<double>(fields[i], name, line)));
    }
    const std::string kind = header.kind ? fields[*header.kind] : "step";
    curves.rows[{kind, number<int64_t>(fields[header.step], name, line)}] = std::move(values);
  }
  return curves;
}

double Pair::difference() const {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
}

double Pair::relative() const {
  const double apart = difference();
  return apart == 0 || std::isinf(apart) ? apart : apart / std::max(std::abs(a), std::abs(b));
}

const ColumnDifference* Comparison::first_parting() const {
  const ColumnDifference* first = nullptr;
  for (const ColumnDifference& column : columns) {
    if (!column.judged || !column.parted) continue;
    const bool earlier =
        first == nullptr || column.parted->step < first->parted->step ||
        (column.parted->step == first->parted->step && column.kind == "step" && first->kind != "step");
    if (earlier) first = &column;
  }
  return first;
}

namespace {

void add(Comparison& result, const std::string& kind, const std::string& column, const Pair& pair,
         double tolerance) {
  auto found = std::find_if(result.columns.begin(), result.columns.end(), [&](const ColumnDifference& one) {
    return one.kind == kind && one.column == column;
  });
  if (found == result.columns.end()) {
    ColumnDifference fresh;
    fresh.kind = kind;
    fresh.column = column;
    fresh.judged = std::find(kNotJudged.begin(), kNotJudged.end(), column) == kNotJudged.end();
    fresh.largest = pair;
    found = result.columns.insert(found, fresh);
  }
  ++found->rows;
  if (pair.relative() > found->largest.relative()) found->largest = pair;
  if (!found->parted && pair.relative() > tolerance) found->parted = pair;
}

}  // namespace

Comparison compare(const Curves& a, const Curves& b, double tolerance) {
  Comparison result;
  for (const auto& [key, values] : a.rows) {  // of a kind in the order of steps
    const auto other = b.rows.find(key);
    if (other == b.rows.end()) {
      ++result.only_a;
      continue;
    }
    ++result.rows;
    for (size_t i = 0; i < a.columns.size(); ++i) {
      const auto at = std::find(b.columns.begin(), b.columns.end(), a.columns[i]);
      if (at == b.columns.end()) continue;
      const auto& theirs = other->second[static_cast<size_t>(at - b.columns.begin())];
      if (values[i] && theirs)
        add(result, key.first, a.columns[i], {key.second, *values[i], *theirs}, tolerance);
    }
  }
  result.only_b = static_cast<int64_t>(b.rows.size()) - result.rows;
  return result;
}

}  // namespace tessera::monitor
