// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/tensor_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"

namespace tessera::monitor {

namespace {

using Json = nlohmann::ordered_json;

/// Takes a line from the front; null where it is no row.
Json take_row(std::string_view& lines) {
  const size_t end = std::min(lines.find('\n'), lines.size());
  Json row = Json::parse(lines.substr(0, end), nullptr, /*allow_exceptions=*/false);
  lines.remove_prefix(std::min(end + 1, lines.size()));
  return row.is_object() && row.contains("step") && row["step"].is_number_integer() ? row : Json();
}

double number_or_nan(const Json& tensor, const char* key) {
  const auto found = tensor.find(key);
  return found != tensor.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::string json_row(int64_t step, const std::vector<TensorStatistics>& statistics) {
  nlohmann::ordered_json row = {{"step", step}};
  for (const TensorStatistics& one : statistics) {
    row[one.kind][one.name] = {
        {"mean", one.mean}, {"rms", one.rms}, {"largest", one.largest}, {"not_finite", one.not_finite}};
  }
  return json_text(row) + "\n";
}

formats::EventScalars scalars(const std::vector<TensorStatistics>& statistics) {
  formats::EventScalars found;
  for (const TensorStatistics& one : statistics) {
    found.emplace_back(concat(one.kind, '/', one.name, "/rms"), one.rms);
    found.emplace_back(concat(one.kind, '/', one.name, "/largest"), one.largest);
  }
  return found;
}

std::vector<StepTensors> read_statistics(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  return parse_statistics(read_file(path));
}

std::vector<StepTensors> parse_statistics(std::string_view lines) {
  std::vector<StepTensors> steps;
  while (!lines.empty()) {
    const Json row = take_row(lines);
    if (row.is_null()) continue;
    StepTensors& step = steps.emplace_back();
    step.step = row["step"].get<int64_t>();
    for (const auto& [kind, tensors] : row.items()) {
      if (!tensors.is_object()) continue;
      for (const auto& [name, one] : tensors.items()) {
        if (!one.is_object()) continue;
        const double bad = number_or_nan(one, "not_finite");
        step.tensors.push_back({kind, name, number_or_nan(one, "mean"), number_or_nan(one, "rms"),
                                number_or_nan(one, "largest"),
                                bad > 0 ? std::llround(std::min(bad, 1e18)) : 0});
      }
    }
  }
  return steps;
}

std::string rows_until(std::string_view lines, int64_t step) {
  std::string kept;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    const Json row = take_row(lines);
    if (!row.is_null() && row["step"] <= step) kept.append(line).append("\n");
  }
  return kept;
}

}  // namespace tessera::monitor
