// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_search_options.h"

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/cli/number_checks.h"
#include "tessera/cli/recipe_and_profile.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMostSearchedRanks = 1'000'000;

struct Hosts {
  int64_t hosts = 1, ranks = 1;
};

Hosts hosts_from_text(std::string_view text, const char* where) {
  const size_t times = text.find('x');
  const auto hosts = parse_number<int64_t>(text.substr(0, times));
  const auto ranks =
      times == std::string_view::npos ? std::nullopt : parse_number<int64_t>(text.substr(times + 1));
  if (!hosts || !ranks || *hosts < 1 || *ranks < 1 || *hosts > kMostSearchedRanks / *ranks) {
    user_error({.where = where,
                .problem = concat("--hosts is ", escape(text)),
                .expected = "hosts and ranks of each, such as 4x8"});
  }
  return {*hosts, *ranks};
}

void take_hosts(const SearchOptions& options, const char* where, PredictionQuery* query) {
  query->ranks = options.ranks;
  if (options.hosts.empty()) {
    if (options.ranks > 0) return;
    user_error({.where = where,
                .problem = "the number of ranks is not given",
                .expected = "--ranks N or --hosts HxN"});
  }
  const Hosts hosts = hosts_from_text(options.hosts, where);
  if (options.ranks > 0 && options.ranks != hosts.hosts * hosts.ranks) {
    user_error({.where = where,
                .problem = concat("--ranks is ", options.ranks, ", and --hosts ", options.hosts, " are ",
                                  hosts.hosts * hosts.ranks),
                .expected = "the same number, or one of them alone"});
  }
  query->ranks = hosts.hosts * hosts.ranks;
  query->ranks_per_host = hosts.ranks;
}

}  // namespace

void add_search_options(CLI::App* command, SearchOptions* options) {
  SearchRequest& request = options->request;
  PredictionQuery& query = request.query;
  add_recipe_and_profile(command, &query);
  command->add_option("--ranks", options->ranks, "Number of ranks of the training")
      ->check(CLI::Range(int64_t{1}, kMostSearchedRanks));
  command->add_option("--hosts", options->hosts,
                      "Hosts and ranks of each, such as 4x8 (default: hosts as in the profile)");
  command->add_option(
      "--memory", request.memory,
      "Memory of a rank, such as 24GiB (default: 90 % of a GPU's, or of what is free here, divided "
      "by the ranks of a host)");
  command
      ->add_option("--batch", request.batch,
                   "Images of a step over all ranks: numbers, or any; the plan with most images/s is chosen "
                   "(default: the recipe's)")
      ->delimiter(',');
  command->add_flag("--uniform", options->uniform, "Give all blocks the same layout");
  command->add_option("--seconds", request.seconds, "Time limit of the search")
      ->check(number_between(0, 1e6))
      ->capture_default_str();
}

SearchRequest request_of(const SearchOptions& options, const char* where) {
  SearchRequest request = options.request;
  take_hosts(options, where, &request.query);
  request.layer_by_layer = !options.uniform;
  return request;
}

std::string options_text(const SearchOptions& options) {
  const SearchRequest& request = options.request;
  std::string text = concat("--profile ", request.query.profile);
  if (options.ranks > 0) text += concat(" --ranks ", options.ranks);
  if (!options.hosts.empty()) text += " --hosts " + options.hosts;
  if (!request.memory.empty()) text += " --memory " + request.memory;
  if (!request.batch.empty()) text += " --batch " + join(request.batch, ",");
  if (options.uniform) text += " --uniform";
  for (const std::string& set : request.query.sets) text += " --set " + set;
  return text;
}

}  // namespace tessera::cli
