// SPDX-License-Identifier: Apache-2.0
// Options that `tessera plan search` and `tessera plan explain` share.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/cli/plan_search.h"

namespace CLI {
class App;
}

namespace tessera::cli {

struct SearchOptions {
  SearchRequest request;
  std::string hosts;  // "4x8": hosts and ranks of each
  int64_t ranks = 0;
  bool uniform = false;
};

/// RECIPE, --profile, --ranks, --hosts, --memory, --batch, --uniform, --seconds, --set. `options` outlives
/// the command.
void add_search_options(CLI::App* command, SearchOptions* options);

/// The request that the options ask for. Errors: UserError in the name of `where` when ranks and hosts are
/// missing, no numbers, or contradict each other.
SearchRequest request_of(const SearchOptions& options, const char* where);

/// "--profile FILE --hosts 8x8 --memory 80GB": the options that differ from their defaults, for a command
/// line.
std::string options_text(const SearchOptions& options);

}  // namespace tessera::cli
