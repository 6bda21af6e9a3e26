// SPDX-License-Identifier: Apache-2.0
// `tessera checkpoint ...`: what can be done with checkpoints without training.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/checkpoint/xla_fsdp.h"
#include "tessera/cli/checkpoint_convert.h"
#include "tessera/cli/checkpoint_inspect.h"
#include "tessera/cli/commands.h"
#include "tessera/recipe/on_damage.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPlaces = R"(
FOLDER is a run folder, a folder of checkpoints, or a checkpoint. If each host of a run saved to a folder on its local
disk, give the folders of all hosts; together they form one checkpoint.)";

struct CheckpointOptions {
  std::vector<std::string> places;
  std::string which = "latest", output, dtype;
  bool json = false, with_optimizer = false, average = false;
  int64_t ranks = 1;

  checkpoint::Folders folders() const {
    return checkpoint::find_parts({places.begin(), places.end()}, which);
  }
  /// The same, but that a damaged checkpoint of one run or folder is passed over, as training does.
  checkpoint::Folders whole_folders() const {
    const fs::path place = places.front();
    const bool given = fs::exists(place / checkpoint::names::kManifest);
    if (places.size() > 1 || given || !fs::is_directory(place)) return folders();
    const auto choice = checkpoint::choose(place, which);
    if (!choice) return folders();  // says what is missing
    const auto recipe = checkpoint::read_manifest(choice->path).progress.recipe_toml;
    const std::string passed_over = recipe::passed_over(*choice, recipe);
    if (!passed_over.empty()) std::cerr << "warning: " << one_line(passed_over) << "\n";
    return choice->path;
  }
};

struct XlaOptions {
  std::string prefix, suffix = "*.pth", output, recipe;
  std::vector<std::string> rename;
  bool without_optimizer = false, for_library = false;
  int64_t ranks = 1;
};

int verify(const CheckpointOptions& options) {
  const auto folders = options.folders();
  const std::vector<std::string> faults = checkpoint::verify(folders);
  const std::string name = folders.paths[0].string();
  for (const std::string& fault : faults) std::cout << fault << "\n";
  if (!faults.empty()) {
    user_error({.where = "checkpoint.verify",
                .problem = concat("checkpoint ", name, " has ", faults.size(),
                                  faults.size() == 1 ? " fault" : " faults")});
  }
  std::cout << name << " is sound\n";
  return kExitDone;
}

/// A name of another format would mislead programs that read the file.
void check_output_name(const std::string& output) {
  static constexpr const char* kOthers[] = {".pth", ".pt", ".bin", ".ckpt", ".npz", ".onnx", ".h5", ".gguf"};
  const fs::path path = output;
  if (std::ranges::find(kOthers, path.extension().string()) == std::end(kOthers)) return;
  const bool pickle = path.extension() == ".pth" || path.extension() == ".pt";
  user_error({.where = "checkpoint.consolidate",
              .problem = concat(output, " is named as a ", path.extension().string(),
                                " file, but safetensors would be written"),
              .expected = fs::path(output).replace_extension(".safetensors").string(),
              .hint = pickle ? "Python loads it by safetensors.torch.load_file" : ""});
}

int consolidate(const CheckpointOptions& options) {
  check_output_name(options.output);
  checkpoint::StoredCheckpoint source(options.whole_folders());
  checkpoint::consolidate(source, options.output,
                          {.average = options.average,
                           .with_state = options.with_optimizer,
                           .dtype = options.dtype,
                           .metadata = {}});
  std::cout << "wrote " << options.output << " from " << source.folders().paths.front().string() << "\n";
  return kExitDone;
}

int reshard(const CheckpointOptions& options) {
  checkpoint::StoredCheckpoint source(options.whole_folders());
  const fs::path output = options.output;
  std::error_code ignored;
  for (const auto& folder : source.folders().paths) {
    if (fs::equivalent(fs::absolute(folder).lexically_normal().parent_path(), output, ignored)) {
      user_error({.where = "checkpoint.reshard",
                  .problem = concat("--output ", output.string(), " holds the checkpoint that is read"),
                  .hint = "name another folder"});
    }
  }
  const fs::path written = checkpoint::reshard(source, output, options.ranks);
  std::cout << "wrote " << written.string() << "\n";
  return kExitDone;
}

// What the tools share: where the checkpoint is.
CLI::App* add_tool(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options, const char* name,
                   const char* help, const std::string& footer) {
  CLI::App* tool = command->add_subcommand(name, help);
  tool->add_option(
          "FOLDER", options->places,
          "Run folder, folder of checkpoints, or checkpoint; those of all hosts if each saved its own")
      ->required()
      ->expected(-1);
  tool->add_option("--which", options->which, "Checkpoint of a run: latest, best or a step number")
      ->default_val("latest");
  tool->footer(kPlaces + footer);
  return tool;
}

// Of one run or folder the same checkpoint as eval and predict take, unless --which is given. The parts of
// several hosts are joined at a step that all have.
void best_by_default(CLI::App* tool, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::Option* which = tool->get_option("--which");
  which->default_str("best, else latest");
  which->description("Checkpoint of a run: latest, best or a step number (folders of several hosts: latest)");
  tool->callback([options, which] {
    if (which->count() == 0 && options->places.size() == 1) options->which = checkpoint::kBestOrLatest;
  });
}

void add_inspect(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool =
      add_tool(command, options, "inspect",
               "Print the contents of a checkpoint: step, recipe, files, and each tensor with its shards", R"(

Examples:
  tessera checkpoint inspect runs/quickstart
  tessera checkpoint inspect runs/quickstart --which best --json)");
  tool->add_flag("--json", options->json, "Print the contents as JSON");
}

void add_verify(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  add_tool(command, options, "verify", "Check all files of a checkpoint: sizes, checksums and completeness",
           R"(

Prints a line for each fault. The exit code is 0 for an intact checkpoint and 2 for a damaged one.

Examples:
  tessera checkpoint verify runs/quickstart
  tessera checkpoint verify runs/quickstart --which best)");
}

void add_consolidate(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool =
      add_tool(command, options, "consolidate", "Merge the shards of all ranks into one safetensors file", R"(

Tensor names are timm's, such as blocks.0.attn.qkv.weight; optimizer state is named as in
adamw.exp_avg/blocks.0.attn.qkv.weight. At most 16 MiB of a tensor are in memory at a time.

Examples:
  tessera checkpoint consolidate runs/quickstart -o weights.safetensors
  tessera checkpoint consolidate node1/run node2/run -o all.safetensors --with-optimizer)");
  best_by_default(tool, options);
  tool->add_option("-o,--output", options->output, "Safetensors file to write")->required();
  tool->add_flag("--with-optimizer", options->with_optimizer, "Also write the optimizer state");
  tool->add_flag("--ema", options->average,
                 "Write the moving average of the weights (ema.decay) instead of the weights");
  tool->add_option("--dtype", options->dtype, "Dtype of the weights: F32, BF16 or F16 (default: as saved)");
}

void add_reshard(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool = add_tool(command, options, "reshard",
                            "Rewrite a checkpoint as if a different number of ranks had saved it",
                            R"(

Training and evaluation load a checkpoint on any number of ranks without this command. Use it to merge the folders of
several hosts, or to change the number of files. Values are copied bit by bit.

Examples:
  tessera checkpoint reshard node1/run node2/run -o merged/checkpoints --ranks 16
  tessera checkpoint reshard runs/quickstart -o runs/one-file/checkpoints)");
  tool->add_option("-o,--output", options->output, "Folder of checkpoints to write to; created if missing")
      ->required();
  tool->add_option("--ranks", options->ranks, "Number of shard files to write")->default_val("1");
}

int import_xla_fsdp(const XlaOptions& options) {
  checkpoint::XlaFsdpOptions wanted{.with_optimizer = !options.without_optimizer,
                                    .rename = {},
                                    .for_library = options.for_library,
                                    .recipe_toml = {}};
  for (const auto& pair : options.rename) {
    const size_t at = pair.find('=');
    if (at == std::string::npos || at == 0) {
      user_error({.where = "cli.checkpoint",
                  .problem = concat("--rename is \"", escape(pair), '"'),
                  .expected = "FROM=TO"});
    }
    wanted.rename.emplace_back(pair.substr(0, at), pair.substr(at + 1));
  }
  if (!options.recipe.empty()) wanted.recipe_toml = recipe::to_toml(recipe::read_recipe(options.recipe, {}));
  checkpoint::XlaFsdpCheckpoint source(checkpoint::xla_fsdp_files(options.prefix, options.suffix), wanted);
  std::cout << "read " << source.world() << (source.world() == 1 ? " rank, " : " ranks, ")
            << source.tensors().size() << " tensors, step " << source.progress().step << "\n";
  if (fs::path(options.output).extension() == ".safetensors") {
    checkpoint::consolidate(source, options.output,
                            {.with_state = !options.without_optimizer, .metadata = {}});
    std::cout << "wrote " << options.output << "\n";
  } else {
    const fs::path written = checkpoint::reshard(source, options.output, options.ranks);
    std::cout << "wrote " << written.string() << "\n";
  }
  return kExitDone;
}

void add_import(CLI::App* command, const std::shared_ptr<XlaOptions>& options) {
  CLI::App* tool =
      command->add_subcommand("import-xla-fsdp", "Convert the per-rank .pth files of PyTorch/XLA FSDP");
  tool->add_option("--ckpt_prefix,--ckpt-prefix", options->prefix,
                   "Common beginning of the input paths, such as ckpts/epoch_300_rank_")
      ->required();
  tool->add_option("--ckpt_suffix,--ckpt-suffix", options->suffix,
                   "Shell pattern for the rest of the input paths")
      ->default_val("*.pth");
  tool->add_option("-o,--output", options->output, "Safetensors file, or folder of checkpoints, to write")
      ->required();
  tool->add_option("--ranks", options->ranks, "Number of shard files to write if the output is a checkpoint")
      ->default_val("1");
  tool->add_flag("--without-optimizer", options->without_optimizer,
                 "Convert parameters and buffers only, without the optimizer state");
  tool->add_flag("--for-library", options->for_library,
                 "Write the optimizer state for load_module of the library instead of for tessera train");
  tool->add_option("--rename", options->rename,
                   "Replace the prefix FROM of tensor names by TO, given as FROM=TO; may be repeated");
  tool->add_option("--recipe", options->recipe, "Recipe to store in the checkpoint, for eval and predict")
      ->check(CLI::ExistingFile);
  tool->footer(R"(
The input files contain {model, shard_metadata, optimizer}, as saved by xm.save on each rank. Shards are merged,
flattened parameters are split, padding is removed, and Adam's moments are converted. Python code in the files is never
run; any object that is not plain data is an error. Weights of vit_10b_fsdp_example fit recipes/vit_10b.toml.

Examples:
  tessera checkpoint import-xla-fsdp --ckpt_prefix ckpts/epoch_300_rank_ --ckpt_suffix '*.ckpt' \
      --recipe recipes/vit_10b.toml -o runs/imported/checkpoints
  tessera checkpoint import-xla-fsdp --ckpt_prefix /tmp/mnist-fsdp/final_ckpt --ckpt_suffix '_rank-*-of-*.pth' \
      -o mnist.safetensors --without-optimizer)");
}

void add_export(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool =
      command->add_subcommand("export", "Write the weights to one safetensors file with timm's names");
  options->places.resize(1);
  tool->add_option("path", options->places[0], "Run folder or checkpoint folder")->required();
  tool->add_option("output", options->output, "Safetensors file to write")->required();
  tool->add_flag("--ema", options->average,
                 "Write the moving average of the weights (ema.decay) instead of the weights");
  tool->add_option("--which", options->which, "Checkpoint of a run: latest, best or a step number");
  best_by_default(tool, options);
  tool->get_option("--which")->description("Checkpoint of a run: latest, best or a step number");
  tool->footer(
      R"(
This is the same as `tessera checkpoint consolidate path -o output`.

Examples:
  tessera checkpoint export runs/quickstart weights.safetensors
  tessera checkpoint export runs/quickstart latest.safetensors --which latest)");
}

}  // namespace

Action add_checkpoint(CLI::App& app) {
  auto options = std::make_shared<CheckpointOptions>(), one = std::make_shared<CheckpointOptions>();
  CLI::App* command =
      app.add_subcommand("checkpoint", "Inspect, verify, merge, reshard, convert and export checkpoints");
  command->require_subcommand(1);
  add_inspect(command, options);
  add_verify(command, options);
  add_consolidate(command, options);
  add_reshard(command, options);
  add_export(command, one);
  auto xla = std::make_shared<XlaOptions>();
  add_import(command, xla);
  auto convert = add_convert(command);
  command->footer(R"(
Examples:
  tessera checkpoint inspect runs/quickstart
  tessera checkpoint export runs/quickstart weights.safetensors
  tessera checkpoint convert vit.safetensors runs/vit/checkpoints)");  // after its subcommands, which would
                                                                       // inherit it
  return [options, one, xla, convert, command] {
    if (command->got_subcommand("convert")) return convert();
    if (command->got_subcommand("inspect")) {
      print_inspection(checkpoint::inspect(options->folders()), options->json, std::cout);
      return static_cast<int>(kExitDone);
    }
    if (command->got_subcommand("verify")) return verify(*options);
    if (command->got_subcommand("consolidate")) return consolidate(*options);
    if (command->got_subcommand("reshard")) return reshard(*options);
    if (command->got_subcommand("import-xla-fsdp")) return import_xla_fsdp(*xla);
    return consolidate(*one);
  };
}

}  // namespace tessera::cli
