// SPDX-License-Identifier: Apache-2.0
// `tessera data inspect`: what is in a data set.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/cli/data_command.h"
#include "tessera/cli/number_checks.h"
#include "tessera/prepare/inspect.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

struct InspectArguments {
  SourceArguments source;
  std::string split = "train", html;
  bool full = false, json = false;
  int64_t samples = 2000;
  int workers = 0;
};

/// Before hours of decoding: the page can be written. Errors: UserError with path and reason.
void check_page(const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const OutputFile page(path);
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    return;  // opening a pipe is its reader's start
  const FileWriter attempt(page.write_to());
}

int inspect(const InspectArguments& arguments) {
  check_page(arguments.html);
  const auto source = arguments.source.open(arguments.split);
  prepare::Inspection found;
  {
    ProgressText line;
    found = prepare::inspect(
        *source, {.full = arguments.full, .samples = arguments.samples, .workers = arguments.workers},
        [&](int64_t done, int64_t all) {
          line.show([&] { return concat("decoded ", human_count(done), " of ", human_count(all)); });
        });
  }
  found.source = arguments.source.spec;
  found.split = arguments.split;
  if (arguments.json) {
    prepare::print_json(found, std::cout);
  } else {
    prepare::print_text(found, std::cout);
  }
  if (arguments.html.empty()) return kExitDone;
  prepare::write_page(arguments.html, found, *source);
  if (!arguments.json) std::cout << "wrote " << arguments.html << "\n";
  return kExitDone;
}

}  // namespace

Action add_data_inspect(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("inspect", "Report classes, image sizes, formats and broken samples of a data set");
  const auto arguments = std::make_shared<InspectArguments>();
  add_source_arguments(command, &arguments->source);
  command->add_option("--split", arguments->split, "Split to inspect")->capture_default_str();
  command->add_flag("--full", arguments->full, "Decode every sample of the split completely");
  command
      ->add_option("--samples", arguments->samples,
                   "Number of samples to decode, spread evenly over the split; unused with --full")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--html", arguments->html,
                      "Also write a self-contained HTML page with sample images to this file");
  command->add_flag("--json", arguments->json, "Print the report as JSON");
  command->add_option("--workers", arguments->workers, "Number of decoding threads (default: one per core)")
      ->check(at_least(1));
  command->footer(R"(
Classes are counted over all samples; sizes, formats and faults are those of the decoded samples. Each broken sample
is listed with the reason. Training replaces broken samples by others, and evaluation counts them as wrong.

Examples:
  tessera data inspect folder:/data/imagenet --html imagenet.html
  tessera data inspect wds:/data/imagenet-wds --split val --full --json > val.json)");
  return [arguments] { return inspect(*arguments); };
}

}  // namespace tessera::cli
