// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/read_on.h"

#include <CLI/CLI.hpp>
#include <map>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

/// Of the commands of the program, and of those below them that are about something else, by all their words.
const std::map<std::string, std::string>& pages() {
  static const std::map<std::string, std::string> table = {
      {"train", "docs/running.md, docs/recipes.md"},
      {"eval", "docs/running.md, docs/data.md"},
      {"predict", "docs/running.md"},
      {"compare", "docs/compare_layouts.md, docs/running.md"},
      {"models", "docs/memory.md"},
      {"plan", "docs/planner.md, docs/parallel.md"},
      {"plan import", "docs/from_galvatron.md, docs/parallel.md"},
      {"plan import-profile", "docs/from_galvatron.md, docs/planner.md"},
      {"plan export-profile", "docs/from_galvatron.md, docs/planner.md"},
      {"options", "docs/recipes.md"},
      {"launch", "docs/library.md"},
      {"checkpoint", "docs/checkpoints.md"},
      {"checkpoint convert", "docs/weights.md"},
      {"checkpoint import-xla-fsdp", "docs/from_xla_fsdp.md"},
      {"bench", "docs/performance.md, docs/sharding.md"},
      {"data", "docs/data.md"},
      {"report", "docs/running.md, docs/metrics.md"},
      {"trace", "docs/metrics.md, docs/pipelines.md"},
  };
  return table;
}

bool all(CLI::App* /*command*/) { return true; }

void add_page(CLI::App& command, const std::string& words_above, const std::string& above) {
  const std::string words = words_above.empty() ? command.get_name() : words_above + " " + command.get_name();
  const auto own = pages().find(words);
  const std::string page = own == pages().end() ? above : own->second;
  const std::string footer = command.get_footer();
  command.footer(concat(footer, footer.empty() ? "\n" : "\n\n", "Read on: ", page, "."));
  for (CLI::App* below : command.get_subcommands(all)) add_page(*below, words, page);
}

}  // namespace

void add_pages(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands(all)) add_page(*command, "", "docs/running.md");
}

}  // namespace tessera::cli
