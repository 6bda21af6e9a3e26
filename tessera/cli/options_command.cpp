// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/models_command.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMostRanks = 1'000'000, kMostImages = 1'000'000'000;

}  // namespace

Action add_options(CLI::App& app) {
  auto room = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("options", "List the recipe keys with type, default and meaning");
  command->add_option("table", *room,
                      "Table whose keys are listed, such as model, data, train or optimizer (default: all)");
  command->footer(R"(
Examples:
  tessera options               all keys
  tessera options optimizer     the keys of [optimizer])");
  return [room] {
    std::vector<std::string> rooms;
    bool any = false;
    for (const auto& option : recipe::option_help()) {
      const std::string own = option.key.substr(0, option.key.find('.'));
      if (rooms.empty() || rooms.back() != own) rooms.push_back(own);
      if (!room->empty() && own != *room) continue;
      any = true;
      std::cout << option.key << " (" << option.type
                << (option.default_value.empty() ? ", no default" : ", default " + option.default_value)
                << (option.families.empty() ? "" : "; only for family " + join(option.families, " or "))
                << ")\n    " << option.help << "\n";
    }
    if (!any) {
      const std::string close = nearest(*room, rooms);
      user_error({.where = "options",
                  .problem = concat("there are no options named ", *room),
                  .expected = concat("one of ", join(rooms, ", ")),
                  .hint = close.empty() ? "" : concat("did you mean ", close, "?")});
    }
    return static_cast<int>(kExitDone);
  };
}

Action add_models(CLI::App& app) {
  struct Options {
    ModelsQuery query;
    std::string level = "zero3";
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("models", "List the named models with parameters, FLOPs and memory per rank");
  command->add_option("name", options->query.name,
                      "Name of the model to print, such as B/16 or resnet50 (default: all)");
  command
      ->add_option("--ranks", options->query.ranks,
                   "Number of ranks over which the state is split (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostRanks));
  command
      ->add_option(
          "--tensor", options->query.tensor,
          "Ranks that compute each block together (parallel.tensor); must divide --ranks (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostRanks));
  command
      ->add_option("--level", options->level,
                   "Sharding level (shard.level): replicate, zero1, zero2 or zero3")
      ->default_val("zero3");
  command->add_option("--batch", options->query.batch, "Images per rank and micro-batch (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostImages));
  command->add_flag("--recompute", options->query.recompute,
                    "Recompute the activations of blocks in backward to save memory (shard.recompute)");
  command->add_flag("--bf16", options->query.bf16, "Assume computation in bf16 instead of fp32");
  command->add_flag("--json", options->query.json, "Print the table as JSON, with sizes in bytes");
  command->footer(R"(
Examples:
  tessera models                                        all models on one rank
  tessera models B/16 --ranks 8 --batch 32 --bf16       ViT-B/16 on 8 ranks
  tessera models G/14 --ranks 8 --tensor 4 --bf16       ViT-G/14 on 2 tensor groups of 4 ranks)");
  return [options] {
    options->query.level = plan::level_from_string(options->level);
    print_models(options->query, std::cout);
    return static_cast<int>(kExitDone);
  };
}

}  // namespace tessera::cli
