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
      data.add_subcommand("import", "Convert published archives to any format without unpacking them first");
  command->require_subcommand(1);
  CLI::App* imagenet =
      command->add_subcommand("imagenet", "Convert the archives of ILSVRC2012 (ImageNet-1k)");
  const auto arguments = std::make_shared<ImportArguments>();
  imagenet->add_option("--train", arguments->train, "Path of ILSVRC2012_img_train.tar, for the split train")
      ->check(CLI::ExistingFile);
  imagenet
      ->add_option("--val", arguments->val,
                   "Path of ILSVRC2012_img_val.tar, for the split val (needs --devkit)")
      ->check(CLI::ExistingFile);
  imagenet
      ->add_option("--devkit", arguments->devkit,
                   "Path of ILSVRC2012_devkit_t12.tar.gz, which contains the labels of val")
      ->check(CLI::ExistingFile);
  add_pack_arguments(imagenet, &arguments->target);
  imagenet->remove_option(imagenet->get_option("--splits"));
  imagenet->footer(R"(
Labels number the 1,000 WordNet ids in sorted order, as in torchvision and timm: label 0 is n01440764. Each image is
read once, directly from the archive; nothing is written outside of DEST. `tessera data pack --help` describes the
formats and how an interrupted import continues.

Examples:
  tessera data import imagenet --train ILSVRC2012_img_train.tar --val ILSVRC2012_img_val.tar \
      --devkit ILSVRC2012_devkit_t12.tar.gz /data/imagenet --to folder
  tessera data import imagenet --train ILSVRC2012_img_train.tar /data/imagenet-wds --to wds --shuffle 1)");
  return [arguments] { return import_imagenet(*arguments); };
}

}  // namespace tessera::cli
