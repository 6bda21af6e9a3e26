// SPDX-License-Identifier: Apache-2.0
// `tessera data index`: index files made ahead of the first start.
#include <CLI/CLI.hpp>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/data_command.h"
#include "tessera/data/index.h"

namespace tessera::cli {
namespace {

struct IndexArguments {
  SourceArguments source;
  std::vector<std::string> splits = {"train", "val"};
};

int index(const IndexArguments& arguments) {
  check_splits("cli.data_index", arguments.splits);
  for (const auto& split : arguments.splits) {
    const data::IndexReport report = data::make_index(
        arguments.source.spec, split, arguments.source.options.index_dir, arguments.source.options);
    std::cout << split << ": " << human_count(report.samples) << " samples in " << human_count(report.classes)
              << " classes, ";
    if (report.file.empty()) {
      std::cout << "needs no index\n";
    } else {
      std::cout << report.file.string() << " (" << human_bytes(static_cast<double>(report.bytes)) << ") "
                << (report.made ? concat("made in ", human_seconds(report.seconds)) : "fits the data")
                << "\n";
    }
  }
  return kExitDone;
}

}  // namespace

Action add_data_index(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("index", "Index a data set ahead of training, so that runs start faster");
  const auto arguments = std::make_shared<IndexArguments>();
  add_source_arguments(command, &arguments->source);
  command->add_option("--splits,--split", arguments->splits, "Splits to index")
      ->delimiter(',')
      ->default_str("train,val");
  command->footer(R"(
Training creates a missing index when it starts. This command creates it earlier, for example on the machine that has
the disks; with --index-dir, set data.index_dir of the recipe to the same folder. An index that is up to date is kept.

Examples:
  tessera data index wds:/data/imagenet-wds --index-dir /scratch/index
  tessera data index folder:/data/imagenet --split train)");
  return [arguments] { return index(*arguments); };
}

}  // namespace tessera::cli
