#include "tessera/cli/read_on.h"

#include <CLI/CLI.hpp>
#include <map>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

/// Of the commands of the program, and of those below them that are about something else.
const std::map<std::string, std::string>& pages() {
  static const std::map<std::string, std::string> table = {
      {"train", "docs/running.md, docs/recipes.md"},
      {"eval", "docs/running.md, docs/data.md"},
      {"predict", "docs/running.md"},
      {"models", "docs/memory.md"},
      {"options", "docs/recipes.md"},
      {"launch", "docs/library.md"},
      {"checkpoint", "docs/checkpoints.md"},
      {"convert", "docs/weights.md"},
      {"import-xla-fsdp", "docs/from_xla_fsdp.md"},
      {"bench", "docs/sharding.md"},
      {"data", "docs/data.md"},
  };
  return table;
}

bool all(CLI::App* /*command*/) { return true; }

void add_page(CLI::App& command, const std::string& above) {
  const auto own = pages().find(command.get_name());
  const std::string page = own == pages().end() ? above : own->second;
  const std::string footer = command.get_footer();
  command.footer(concat(footer, footer.empty() ? "\n" : "\n\n", "Read on: ", page, "."));
  for (CLI::App* below : command.get_subcommands(all)) add_page(*below, page);
}

}  // namespace

void add_pages(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands(all)) add_page(*command, "docs/running.md");
}

}  // namespace tessera::cli
