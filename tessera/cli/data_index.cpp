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
      data.add_subcommand("index", "Find a data set's samples once, so that every start is quick");
  const auto arguments = std::make_shared<IndexArguments>();
  add_source_arguments(command, &arguments->source);
  command->add_option("--splits,--split", arguments->splits, "Which splits")
      ->delimiter(',')
      ->default_str("train,val");
  command->footer(R"(
Training makes the index it misses; this makes it ahead, for example on the machine that has the disks. Set
data.index_dir to the same folder then. An index that fits the data is left as it is.

  tessera data index wds:/data/imagenet-wds --index-dir /scratch/index
  tessera data index folder:/data/imagenet --split train)");
  return [arguments] { return index(*arguments); };
}

}  // namespace tessera::cli
