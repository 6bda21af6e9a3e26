// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/inspect_page.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::prepare {
namespace {

using monitor::escape_html;

constexpr size_t kPictureBytes = size_t{5} << 20;  // of the classes' pictures, as text in the page
constexpr size_t kOddBytes = size_t{2} << 20;

std::string card(const char* label, const std::string& value, const std::string& unit,
                 const std::string& below) {
  return concat("<div class=\"card\"><span class=\"label\">", label, "</span><span class=\"value\">", value,
                unit.empty() ? "" : concat("<small>", unit, "</small>"), "</span><span class=\"below\">",
                below, "</span></div>\n");
}

std::string bytes_card(const Inspection& inspection) {
  const Spread spread =
      spread_of(values_of(inspection, [](const Seen& seen) { return static_cast<int64_t>(seen.bytes); }));
  const std::string text = human_bytes(static_cast<double>(spread.median));
  const size_t space = text.find(' ');
  return card("Median file", text.substr(0, space), text.substr(space + 1),
              concat(human_bytes(static_cast<double>(spread.least)), " to ",
                     human_bytes(static_cast<double>(spread.most))));
}

std::string cards(const Inspection& inspection) {
  const auto looked = static_cast<int64_t>(inspection.seen.size() + inspection.broken.size());
  const Spread counts = spread_of(inspection.class_counts);
  const Spread width = spread_of(values_of(inspection, [](const Seen& seen) { return seen.width; }));
  const Spread height = spread_of(values_of(inspection, [](const Seen& seen) { return seen.height; }));
  const auto broken = static_cast<int64_t>(inspection.broken.size());
  return concat(
      "<div class=\"cards\">\n",
      card("Samples", human_count(inspection.samples), "",
           inspection.full ? "all decoded" : concat(human_count(looked), " decoded")),
      card("Classes", human_count(static_cast<int64_t>(inspection.classes.size())), "",
           concat(counts.least == counts.most ? "" : concat(human_count(counts.least), " to "),
                  human_count(counts.most), " samples each")),
      card("Median size", concat(width.median, " × ", height.median), "",
           concat("from ", width.least, " × ", height.least, " to ", width.most, " × ", height.most)),
      bytes_card(inspection),
      card("Broken", human_count(broken), "",
           broken == 0 ? "everything decoded could be read" : "named below, with the reasons"),
      "</div>\n");
}

std::string formats_part(const Inspection& inspection) {
  std::vector<std::pair<int64_t, std::string>> formats;
  for (const auto& [name, count] : inspection.formats) formats.emplace_back(count, name);
  std::sort(formats.rbegin(), formats.rend());
  std::string rows;
  const double all = std::max<double>(1, static_cast<double>(inspection.seen.size()));
  for (const auto& [count, name] : formats) {
    const double percent = 100 * static_cast<double>(count) / all;
    rows += concat("<tr><td>", escape_html(name), "</td><td class=\"n\">", human_count(count),
                   "</td><td class=\"wide\"><span class=\"share\"><span><i style=\"width:", percent,
                   "%\"></i></span></span></td></tr>\n");
  }
  return monitor::section("formats", "Formats", "",
                          rows.empty() ? "" : "<table class=\"pairs\">" + rows + "</table>\n");
}

std::string page(const Inspection& inspection, const std::string& body) {
  const std::string title = escape_html(inspection.source);
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      title, " · Tessera</title>\n<style>", monitor::kStyle, kInspectStyle,
      "</style>\n</head>\n<body>\n<main>\n<header><div><p class=\"over\">Tessera data inspect</p><h1>", title,
      "</h1><p class=\"about\">split ", escape_html(inspection.split), "</p></div></header>\n", body,
      "</main>\n</body>\n</html>\n");
}

}  // namespace

void write_page(const std::filesystem::path& path, const Inspection& inspection, const data::Source& source) {
  const bool many = inspection.classes.size() > 60;
  Thumbnails pictures(source, many ? 64 : 112, kPictureBytes), odd(source, 112, kOddBytes);
  write_file_atomic(path, page(inspection, cards(inspection) + counts_part(inspection) +
                                               sizes_part(inspection) + formats_part(inspection) +
                                               broken_part(inspection) + odd_part(inspection, source, odd) +
                                               classes_part(inspection, source, pictures)));
}

}  // namespace tessera::prepare
