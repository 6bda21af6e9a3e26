// SPDX-License-Identifier: Apache-2.0
// `tessera data import`: archives as their makers publish them, into any form.
#include <CLI/CLI.hpp>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/data_command.h"
#include "tessera/prepare/imagenet.h"

namespace tessera::cli {
namespace {

struct ImportArguments {
  std::string train, val, devkit;
  PackArguments target;
};

int import_imagenet(ImportArguments arguments) {
  arguments.target.splits.clear();
  if (!arguments.train.empty()) arguments.target.splits.emplace_back("train");
  if (!arguments.val.empty()) arguments.target.splits.emplace_back("val");
  if (arguments.target.splits.empty())
    user_error({.where = "cli.data_import",
                .problem = "neither --train nor --val is given",
                .expected = "at least one of them"});
  if (!arguments.val.empty() && arguments.devkit.empty()) {
    user_error({.where = "cli.data_import",
                .problem = "--val is given without --devkit",
                .expected = "the development kit, which has the classes of the validation images"});
  }
  const std::string origin = concat("imagenet ", arguments.train, " ", arguments.val, " ", arguments.devkit);
  return run_pack(arguments.target, origin, [&](const std::string& split) {
    return prepare::open_imagenet({arguments.train, arguments.val, arguments.devkit}, split);
  });
}

}  // namespace

Action add_data_import(CLI::App& data) {
  CLI::App* command =
      data.add_subcommand("import", "Read published archives into any form, without unpacking them");
  command->require_subcommand(1);
  CLI::App* imagenet = command->add_subcommand("imagenet", "The archives of ILSVRC2012 (ImageNet-1k)");
  const auto arguments = std::make_shared<ImportArguments>();
  imagenet->add_option("--train", arguments->train, "ILSVRC2012_img_train.tar")->check(CLI::ExistingFile);
  imagenet->add_option("--val", arguments->val, "ILSVRC2012_img_val.tar")->check(CLI::ExistingFile);
  imagenet->add_option("--devkit", arguments->devkit, "ILSVRC2012_devkit_t12.tar.gz: the classes of val")
      ->check(CLI::ExistingFile);
  add_pack_arguments(imagenet, &arguments->target);
  imagenet->remove_option(imagenet->get_option("--splits"));
  imagenet->footer(R"(
Classes are the 1,000 WordNet ids in sorted order, as everywhere: label 0 is n01440764. Each image is read once, from
its place in the archive; besides DEST nothing is written. Forms and resuming: tessera data pack --help.

  tessera data import imagenet --train ILSVRC2012_img_train.tar --val ILSVRC2012_img_val.tar \
      --devkit ILSVRC2012_devkit_t12.tar.gz /data/imagenet --to folder)");
  return [arguments] { return import_imagenet(*arguments); };
}

}  // namespace tessera::cli
