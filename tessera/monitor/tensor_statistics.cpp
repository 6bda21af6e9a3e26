#include "tessera/monitor/tensor_statistics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"

namespace tessera::monitor {

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

std::string rows_until(std::string_view lines, int64_t step) {
  std::string kept;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const auto row = nlohmann::json::parse(lines.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains("step") && row["step"].is_number_integer() && row["step"] <= step) {
      kept.append(lines.substr(0, end)).append("\n");
    }
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return kept;
}

}  // namespace tessera::monitor
