// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/prepare/inspect.h"

namespace tessera::prepare {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostLines = 20;

std::string bytes_text(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

void print_spread(std::ostream& out, const char* name, const Spread& spread, std::string (*text)(int64_t)) {
  out << name << ": median " << text(spread.median) << ", " << text(spread.least) << " to "
      << text(spread.most) << "\n";
}

template <typename Value, typename Count>
std::string list(const std::map<std::string, Value>& values, const Count& count) {
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [name, value] : values) sorted.emplace_back(-count(value), name);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> parts;
  for (const auto& [number, name] : sorted) parts.push_back(concat(human_count(-number), " ", name));
  return join(parts, ", ");
}

/// What the images that could be decoded are like.
void print_images(const Inspection& inspection, std::ostream& out) {
  const auto bytes = values_of(inspection, [](const Seen& seen) { return static_cast<int64_t>(seen.bytes); });
  print_spread(out, "file size", spread_of(bytes), bytes_text);
  print_spread(out, "width", spread_of(values_of(inspection, [](const Seen& s) { return s.width; })),
               human_count);
  print_spread(out, "height", spread_of(values_of(inspection, [](const Seen& s) { return s.height; })),
               human_count);
  out << "formats  " << list(inspection.formats, [](int64_t count) { return count; }) << "\n";
}

/// The largest first; in the middle of a long list a line stands for the rest.
void print_classes(const Inspection& inspection, std::ostream& out) {
  std::vector<size_t> order(inspection.classes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return inspection.class_counts[a] > inspection.class_counts[b];
  });
  const size_t shown = std::min(order.size(), kMostLines);
  for (size_t i = 0; i < shown; ++i) {
    const bool second_half = order.size() > kMostLines && i >= kMostLines / 2;
    if (second_half && i == kMostLines / 2) {
      out << "    ... " << human_count(static_cast<int64_t>(order.size() - kMostLines)) << " more ...\n";
    }
    const size_t label = order[second_half ? order.size() - kMostLines + i : i];
    out << "  " << one_line(inspection.classes[label]) << "  " << human_count(inspection.class_counts[label])
        << "\n";
  }
}

Json spread_json(const Spread& spread) {
  return {{"least", spread.least}, {"median", spread.median}, {"most", spread.most}};
}

}  // namespace

void print_text(const Inspection& inspection, std::ostream& out) {
  const auto looked = static_cast<int64_t>(inspection.seen.size() + inspection.broken.size());
  out << one_line(concat(inspection.source, ", split ", inspection.split)) << ": "
      << human_count(inspection.samples) << " samples in "
      << human_count(static_cast<int64_t>(inspection.classes.size()))
      << (inspection.classes.size() == 1 ? " class; " : " classes; ")
      << (inspection.full ? std::string("all") : human_count(looked)) << " decoded\n";
  if (!inspection.seen.empty()) print_images(inspection, out);
  if (!inspection.odd.empty()) {
    out << "odd      "
        << list(inspection.odd, [](const auto& indices) { return static_cast<int64_t>(indices.size()); })
        << "\n";
  }
  print_spread(out, "images per class", spread_of(inspection.class_counts), human_count);
  print_classes(inspection, out);
  out << "broken   " << inspection.broken.size() << (inspection.full ? "" : " of those decoded") << "\n";
  for (size_t i = 0; i < std::min(inspection.broken.size(), kMostLines); ++i) {
    out << "  " << one_line(concat(inspection.broken[i].name, ": ", inspection.broken[i].reason)) << "\n";
  }
  if (inspection.broken.size() > kMostLines) {
    out << "  ... " << inspection.broken.size() - kMostLines << " more; --json names all\n";
  }
}

void print_json(const Inspection& inspection, std::ostream& out) {
  Json json = {
      {"source", inspection.source},   {"split", inspection.split},
      {"samples", inspection.samples}, {"looked_at", inspection.seen.size() + inspection.broken.size()},
      {"full", inspection.full},       {"classes", Json::array()},
      {"formats", inspection.formats}, {"odd", Json::object()},
      {"broken", Json::array()}};
  for (size_t i = 0; i < inspection.classes.size(); ++i) {
    json["classes"].push_back({{"name", inspection.classes[i]}, {"samples", inspection.class_counts[i]}});
  }
  const auto bytes = values_of(inspection, [](const Seen& seen) { return static_cast<int64_t>(seen.bytes); });
  json["bytes"] = spread_json(spread_of(bytes));
  json["width"] = spread_json(spread_of(values_of(inspection, [](const Seen& seen) { return seen.width; })));
  json["height"] =
      spread_json(spread_of(values_of(inspection, [](const Seen& seen) { return seen.height; })));
  for (const auto& [name, indices] : inspection.odd) json["odd"][name] = indices.size();
  for (const Broken& broken : inspection.broken) {
    json["broken"].push_back({{"name", broken.name}, {"reason", broken.reason}});
  }
  out << json_text(json, 2) << "\n";
}

}  // namespace tessera::prepare
