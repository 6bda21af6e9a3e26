// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/report.h"

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {
namespace {

constexpr std::string_view kMark =
    "<svg class=\"mark\" viewBox=\"0 0 32 32\" aria-hidden=\"true\"><rect class=\"a\" width=\"15\" "
    "height=\"15\" rx=\"3\"/>"
    "<rect class=\"b\" x=\"17\" width=\"15\" height=\"15\" rx=\"3\"/><rect class=\"c\" y=\"17\" width=\"15\" "
    "height=\"15\" rx=\"3\"/><rect class=\"a\" x=\"17\" y=\"17\" width=\"15\" height=\"15\" rx=\"3\"/></svg>";

std::string title_text(std::string_view title) { return title.empty() ? "Untitled run" : escape_html(title); }

std::string header_part(const ReportInput& input) {
  std::string about;
  if (!input.classes.empty()) about = human_count(static_cast<int64_t>(input.classes.size())) + " classes";
  if (!input.evals.empty() && input.evals.back().samples > 0) {
    about += concat(about.empty() ? "" : " · ", human_count(input.evals.back().samples), " test images");
  }
  return page_header("Tessera training report", input.title, about) + cards_part(input);
}

std::string rows_of(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string rows;
  for (const auto& [name, value] : values) {
    rows += concat("<div><dt>", escape_html(name), "</dt><dd>", escape_html(value), "</dd></div>\n");
  }
  return rows;
}

std::string environment_part(const ReportInput& input) {
  if (input.environment.empty()) return "";
  return concat("<details id=\"environment\"><summary>Environment</summary><dl class=\"facts\">\n",
                rows_of(input.environment), "</dl></details>\n");
}

std::string recipe_part(const ReportInput& input) {
  if (input.recipe_toml.empty()) return "";
  return concat("<details id=\"recipe\"><summary>Recipe</summary><pre><code>", escape_html(input.recipe_toml),
                "</code></pre></details>\n");
}

}  // namespace

std::string facts_list(const std::vector<std::pair<std::string, std::string>>& facts) {
  return facts.empty() ? "" : concat("<dl class=\"facts\">\n", rows_of(facts), "</dl>\n");
}

std::string facts_part(const ReportInput& input) {
  return section("facts", "Facts", "", facts_list(input.facts));
}

std::string page_header(std::string_view kind, std::string_view title, std::string_view about) {
  return concat("<header>", kMark, "<div><p class=\"over\">", kind, "</p><h1>", title_text(title), "</h1>",
                about.empty() ? "" : concat("<p class=\"about\">", about, "</p>"), "</div></header>\n");
}

std::string page(std::string_view title, std::string_view body, std::string_view style) {
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      title_text(title), " · Tessera</title>\n<style>", kStyle, style, "</style>\n</head>\n<body>\n<main>\n",
      body, "</main>\n<script>", kScript, "</script>\n</body>\n</html>\n");
}

void write_report(const std::filesystem::path& path, const ReportInput& input) {
  write_file_atomic(
      path, page(input.title, concat(header_part(input), charts_part(input), statistics_part(input),
                                     predictions_part(input), confusion_part(input), facts_part(input),
                                     recipe_part(input), environment_part(input))));
}

}  // namespace tessera::monitor
