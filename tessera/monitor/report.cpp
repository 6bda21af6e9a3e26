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

std::string header_part(const ReportInput& input) {
  const std::string title = input.title.empty() ? "Untitled run" : escape_html(input.title);
  std::string about;
  if (!input.classes.empty()) about = human_count(static_cast<int64_t>(input.classes.size())) + " classes";
  if (!input.evals.empty() && input.evals.back().samples > 0) {
    about += concat(about.empty() ? "" : " · ", human_count(input.evals.back().samples), " test images");
  }
  return concat("<header>", kMark, "<div><p class=\"over\">Tessera training report</p><h1>", title, "</h1>",
                about.empty() ? "" : concat("<p class=\"about\">", about, "</p>"), "</div></header>\n",
                cards_part(input));
}

std::string facts_part(const ReportInput& input) {
  std::string rows;
  for (const auto& [name, value] : input.facts) {
    rows += concat("<div><dt>", escape_html(name), "</dt><dd>", escape_html(value), "</dd></div>\n");
  }
  return rows.empty() ? "" : section("facts", "Facts", "", "<dl class=\"facts\">\n" + rows + "</dl>\n");
}

std::string recipe_part(const ReportInput& input) {
  if (input.recipe_toml.empty()) return "";
  return concat("<details id=\"recipe\"><summary>Recipe</summary><pre><code>", escape_html(input.recipe_toml),
                "</code></pre></details>\n");
}

}  // namespace

void write_report(const std::filesystem::path& path, const ReportInput& input) {
  const std::string page = concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      escape_html(input.title.empty() ? "Untitled run" : input.title), " · Tessera</title>\n<style>", kStyle,
      "</style>\n</head>\n<body>\n<main>\n", header_part(input), charts_part(input), predictions_part(input),
      confusion_part(input), facts_part(input), recipe_part(input), "</main>\n<script>", kScript,
      "</script>\n</body>\n</html>\n");
  write_file_atomic(path, page);
}

}  // namespace tessera::monitor
