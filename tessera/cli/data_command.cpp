// SPDX-License-Identifier: Apache-2.0
// `tessera data ...`: what can be done with data sets without training.
#include "tessera/cli/data_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/one_line.h"
#include "tessera/cli/data_bench.h"

namespace tessera::cli {
namespace {

constexpr const char* kDataFooter = R"(
SOURCE is written as data.source in a recipe: folder:DIR, zip:DIR, wds:SHARDS, tfrecord:PATH, idx:DIR, cifar:PATH, fake:N.

Examples:
  tessera data inspect folder:/data/imagenet --html imagenet.html       look at a data set before training on it
  tessera data pack folder:/data/imagenet /data/imagenet-wds --to wds --shuffle 1
  tessera data import imagenet --train ILSVRC2012_img_train.tar --val ILSVRC2012_img_val.tar \
      --devkit ILSVRC2012_devkit_t12.tar.gz /data/imagenet-zip --to zip
  tessera data index wds:/data/imagenet-wds                             make the first start of a run faster
  tessera data bench wds:/data/imagenet-wds                             measure how fast it is read and decoded

Tessera downloads nothing. Read the terms of use of a data set before you use it.)";

}  // namespace

Action add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Inspect, convert, index and benchmark data sets");
  data->footer(kDataFooter);
  data->require_subcommand(1);
  const std::vector<std::pair<std::string, Action>> tools = {
      {"inspect", add_data_inspect(*data)}, {"pack", add_data_pack(*data)},
      {"import", add_data_import(*data)},   {"index", add_data_index(*data)},
      {"bench", add_data_bench(*data)},
  };
  return [data, tools] {
    for (const auto& [name, action] : tools) {
      if (data->got_subcommand(name)) return action();
    }
    TESSERA_CHECK(false, "a subcommand without an action");
    return static_cast<int>(kExitInternal);
  };
}

std::unique_ptr<data::Source> SourceArguments::open(const std::string& split) const {
  return data::open_source(spec, split, options);
}

void add_source_arguments(CLI::App* command, SourceArguments* arguments) {
  command
      ->add_option("SOURCE", arguments->spec,
                   "Data set, written as data.source in a recipe, such as folder:DIR or wds:SHARDS")
      ->required();
  add_source_options(command, &arguments->options);
}

void add_source_options(CLI::App* command, data::SourceOptions* options) {
  options->warn = [](const std::string& line) {
    std::fprintf(stderr, "warning: %s\n", one_line(line).c_str());
  };
  command->add_option(
      "--index-dir", options->index_dir,
      "Folder for index files; beside = with the data, none = no files (default: ~/.cache/tessera/index)");
  command->add_option("--image-key", options->image_key,
                      "Where images are: tfrecord feature or wds file extension (default: auto-detected)");
  command->add_option(
      "--label-key", options->label_key,
      "Where labels are: tfrecord feature, wds file extension or json:FIELD (default: auto-detected)");
  command->add_option(
      "--label-offset", options->label_offset,
      "Integer added to each label of zip, wds and tfrecord data; -1 if labels start at 1 (default: 0)");
  command->add_option(
      "--classes", options->classes,
      "File of class names, one per line, for zip, wds and tfrecord (default: classes.txt with the data)");
}

ProgressText::ProgressText()
    : terminal_(::isatty(STDERR_FILENO) == 1), last_(std::chrono::steady_clock::now()) {}

ProgressText::~ProgressText() {
  if (width_ > 0) std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
}

bool ProgressText::due() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(30))) return false;
  last_ = now;
  return true;
}

void ProgressText::print(const std::string& text) {
  const int room = static_cast<int>(width_ > text.size() ? width_ - text.size() : 0);
  std::fprintf(stderr, terminal_ ? "\r%s%*s" : "%s%*s\n", text.c_str(), terminal_ ? room : 0, "");
  if (terminal_) width_ = text.size();
}

}  // namespace tessera::cli
