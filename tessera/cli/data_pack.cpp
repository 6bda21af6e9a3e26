// SPDX-License-Identifier: Apache-2.0
// `tessera data pack`: any source into any form.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/data_command.h"
#include "tessera/cli/number_checks.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPackFooter = R"(
Formats:
  folder     DEST/SPLIT/CLASS/IMAGE                      one file per image: easy to look at, slow to copy
  wds        DEST/SPLIT-000000.tar ...                   WebDataset shards with KEY.jpg and KEY.cls
  zip        DEST/SPLIT.zip and DEST/SPLIT_map.txt       one uncompressed zip file per split, read in place
  tfrecord   DEST/NAME-SPLIT.tfrecord-00000-of-00012     the layout of TensorFlow Datasets

Image files are copied byte for byte; raw pixels (idx, cifar, fake) are written as PNG. The output does not depend on the
machine or the number of workers. After an interruption, for example by a full disk, the same command continues where it
stopped; DEST/pack.jsonl records the progress.

Examples:
  tessera data pack folder:/data/imagenet /data/imagenet-wds --to wds --shuffle 1 --name imagenet
  tessera data pack wds:/data/imagenet-wds /data/tfds/imagenet/1.0.0 --to tfrecord --max-bytes 128MB
  tessera data pack idx:/usr/share/datasets/fashion-mnist /data/fashion --to folder --splits train,test)";

std::string snake_case(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    c = std::isalnum(byte) != 0 && byte < 0x80 ? static_cast<char>(std::tolower(byte)) : '_';
  }
  return text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) != 0 ? "data_" + text : text;
}

bool is_version(const std::string& text) {
  return std::count(text.begin(), text.end(), '.') == 2 &&
         text.find_first_not_of("0123456789.") == std::string::npos;
}

void check(const PackArguments& arguments, prepare::Form form) {
  constexpr const char* kWhere = "cli.data_pack";
  const bool shards = form == prepare::Form::kWds || form == prepare::Form::kTfrecord;
  const bool limited = arguments.max_bytes != 0 || arguments.max_samples != 0;
  if (limited && !shards) {
    user_error({.where = kWhere,
                .problem = concat("--max-bytes and --max-samples have no effect with --to ", arguments.to),
                .expected = "a form of shards (--to wds or tfrecord)"});
  }
  const bool indexed = arguments.dali_index || !arguments.dali_index_dir.empty();
  if (indexed && form != prepare::Form::kWds) {
    user_error(
        {.where = kWhere,
         .problem = concat("--dali-index and --dali-index-dir have no effect with --to ", arguments.to),
         .expected = "--to wds"});
  }
  check_splits(kWhere, arguments.splits);
}

}  // namespace

void check_splits(const char* where, const std::vector<std::string>& splits) {
  if (splits.empty())
    user_error({.where = where, .problem = "--splits is empty", .expected = "names such as train,val"});
  for (size_t i = 0; i < splits.size(); ++i) {
    const std::string& split = splits[i];
    const bool printable = std::none_of(split.begin(), split.end(), [](char c) {
      return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
    });
    const bool name = printable && !split.empty() && split[0] != '.' &&
                      split.find_first_of("/\\:[]+%") == std::string::npos;
    const auto here = splits.begin() + static_cast<std::ptrdiff_t>(i);
    if (!name || std::find(splits.begin(), here, split) != here)
      user_error({.where = where,
                  .problem = concat("--splits has '", escape(split), "'"),
                  .expected = "plain names, each once"});
  }
}

prepare::PackOptions PackArguments::options() const {
  prepare::PackOptions out;
  out.form = prepare::form_of(to);
  check(*this, out.form);
  out.splits = splits;
  out.max_bytes = max_bytes;
  out.max_samples = max_samples;
  if (shuffle >= 0) out.shuffle = static_cast<uint64_t>(shuffle);
  out.workers = workers;
  out.skip_broken = skip_broken;
  out.writer.name = name;
  out.writer.dali_index = dali_index;
  out.writer.index_dir = dali_index_dir;
  if (out.form != prepare::Form::kTfrecord) return out;
  fs::path place = fs::absolute(folder / fs::path()).lexically_normal().parent_path();
  if (is_version(place.filename().string())) {
    out.writer.version = place.filename().string();
    place = place.parent_path();
  }
  if (!version.empty()) out.writer.version = version;
  if (!is_version(out.writer.version)) {
    user_error({.where = "cli.data_pack",
                .problem = concat("--data-version is '", escape(version), "'"),
                .expected = "a version such as 1.0.0"});
  }
  if (name.empty()) out.writer.name = snake_case(place.filename().string());
  return out;
}

void add_pack_arguments(CLI::App* command, PackArguments* arguments) {
  command
      ->add_option("DEST", arguments->folder,
                   "Output folder: empty, or left by an interrupted run of the same command")
      ->required();
  command->add_option("--to", arguments->to, "Format to write: folder, wds, zip or tfrecord")->required();
  command->add_option("--splits", arguments->splits, "Splits to write, in this order")
      ->delimiter(',')
      ->default_str("train,val");
  command
      ->add_option(
          "--max-bytes", arguments->max_bytes,
          "Largest size of a shard of wds or tfrecord, such as 500MB (default: 1 GiB, for tfrecord 256 MiB)")
      ->transform(byte_size());
  command
      ->add_option("--max-samples", arguments->max_samples,
                   "Largest number of samples in a shard of wds or tfrecord (default: no limit)")
      ->check(at_least(1));
  command
      ->add_option("--shuffle", arguments->shuffle,
                   "Shuffle the samples of each split with this seed (default: the order of the source)")
      ->check(at_least(0));
  command
      ->add_option("--workers", arguments->workers,
                   "Number of reading and encoding threads (default: one per core)")
      ->check(at_least(1));
  command->add_flag("--skip-broken", arguments->skip_broken,
                    "Leave out unreadable samples with a warning instead of stopping at the first");
  command->add_option("--name", arguments->name,
                      "Prefix of shard names (wds), or name of the data set (tfrecord, default: from DEST)");
  command->add_option(
      "--data-version", arguments->version,
      "Version of a tfrecord data set, such as 1.0.0 (default: from the end of DEST, else 1.0.0)");
  command->add_flag("--dali-index", arguments->dali_index,
                    "With --to wds: also write an index for NVIDIA DALI next to each shard, as SHARD.idx");
  command->add_option(
      "--dali-index-dir", arguments->dali_index_dir,
      "With --to wds: also write indexes for DALI to this folder, as DIR/SPLIT/idx_0.txt, ...");
}

int run_pack(const PackArguments& arguments, const std::string& origin, const prepare::OpenSplit& open) {
  const prepare::PackOptions options = arguments.options();
  prepare::PackResult result;
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressText line;
    result = prepare::pack(open, origin, arguments.folder, options, [&](const prepare::PackProgress& now) {
      line.show([&] {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        return concat(now.split, "  ", human_count(now.position), " of ", human_count(now.samples), "  ",
                      human_bytes(static_cast<double>(now.bytes) / passed.count()), "/s");
      });
    });
  }
  if (result.was_done) {
    std::cout << arguments.folder << " is complete: an earlier run of this command filled it\n";
    return kExitDone;
  }
  if (result.resumed_from > 0) {
    std::cout << "went on after " << human_count(result.resumed_from) << " samples of an earlier run\n";
  }
  for (const auto& split : result.splits) {
    int64_t samples = 0;
    uint64_t bytes = 0;
    std::vector<std::string> left_out;
    for (const auto& part : split.parts) {
      samples += part.samples;
      bytes += part.bytes;
      left_out.insert(left_out.end(), part.left_out.begin(), part.left_out.end());
    }
    std::cout << split.name << ": " << human_count(samples) << " samples, "
              << human_bytes(static_cast<double>(bytes)) << "\n";
    for (const auto& name : left_out) std::cerr << "warning: left out " << escape(name) << "\n";
  }
  std::cout << "wrote " << arguments.folder << "\n";
  return kExitDone;
}

Action add_data_pack(CLI::App& data) {
  CLI::App* command = data.add_subcommand("pack", "Convert a data set to another format");
  const auto source = std::make_shared<SourceArguments>();
  const auto target = std::make_shared<PackArguments>();
  add_source_arguments(command, source.get());
  add_pack_arguments(command, target.get());
  command->footer(kPackFooter);
  return [source, target] {
    return run_pack(*target, source->spec, [&](const std::string& split) { return source->open(split); });
  };
}

}  // namespace tessera::cli
