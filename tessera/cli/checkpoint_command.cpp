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
FOLDER is a run's folder, a folder of checkpoints, or a checkpoint. Where the hosts of a run saved into folders of
their own, give the folders of all hosts: together they are one checkpoint.)";

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
  std::cout << "wrote " << checkpoint::reshard(source, output, options.ranks).string() << "\n";
  return kExitDone;
}

// What the tools share: where the checkpoint is.
CLI::App* add_tool(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options, const char* name,
                   const char* help, const std::string& footer) {
  CLI::App* tool = command->add_subcommand(name, help);
  tool->add_option("FOLDER", options->places, "Run, folder of checkpoints, or checkpoint; of all hosts")
      ->required()
      ->expected(-1);
  tool->add_option("--which", options->which, "Of a run: latest, best or a step")->default_val("latest");
  tool->footer(kPlaces + footer);
  return tool;
}

// Of one run or folder the same checkpoint as eval and predict take, unless --which is given. The parts of
// several hosts are joined at a step that all have.
void best_by_default(CLI::App* tool, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::Option* which = tool->get_option("--which");
  which->default_str("best, else latest");
  which->description("Of a run: latest, best or a step (of several hosts' folders: latest)");
  tool->callback([options, which] {
    if (which->count() == 0 && options->places.size() == 1) options->which = checkpoint::kBestOrLatest;
  });
}

void add_inspect(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool = add_tool(command, options, "inspect",
                            "What a checkpoint holds: step, recipe, files, every tensor and who has it", R"(

  tessera checkpoint inspect runs/quickstart
  tessera checkpoint inspect runs/quickstart --which best --json)");
  tool->add_flag("--json", options->json, "All facts as JSON");
}

void add_verify(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  add_tool(command, options, "verify", "Read all files: sizes, checksums, and that no part is missing", R"(

Prints a line for each fault. Exit code 0: sound; 2: damaged.

  tessera checkpoint verify runs/quickstart)");
}

void add_consolidate(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool = add_tool(command, options, "consolidate", "One safetensors file of all ranks' parts", R"(

Holds 16 MiB of a tensor at a time, whatever the model. Names are timm's: blocks.0.attn.qkv.weight. The optimizer's
state keeps its full names: adamw.exp_avg/blocks.0.attn.qkv.weight.

  tessera checkpoint consolidate runs/quickstart -o weights.safetensors
  tessera checkpoint consolidate node1/run node2/run -o all.safetensors --with-optimizer)");
  best_by_default(tool, options);
  tool->add_option("-o,--output", options->output, "File to write")->required();
  tool->add_flag("--with-optimizer", options->with_optimizer, "Also the optimizer's state");
  tool->add_flag("--ema", options->average, "The moving average of the parameters in their place");
  tool->add_option("--dtype", options->dtype, "Of the parameters: F32, BF16 or F16 (default: as saved)");
}

void add_reshard(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool =
      add_tool(command, options, "reshard", "The same checkpoint as another number of ranks would save it",
               R"(

Training and evaluation load a checkpoint on any number of ranks without this. It is for parts that lie in several
folders, which it makes one of, and for fewer or more files. Bit for bit the same values.

  tessera checkpoint reshard node1/run node2/run -o merged/checkpoints --ranks 16)");
  tool->add_option("-o,--output", options->output, "Folder of checkpoints to write into; made where missing")
      ->required();
  tool->add_option("--ranks", options->ranks, "Number of shard files")->default_val("1");
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
    std::cout << "wrote " << checkpoint::reshard(source, options.output, options.ranks).string() << "\n";
  }
  return kExitDone;
}

void add_import(CLI::App* command, const std::shared_ptr<XlaOptions>& options) {
  CLI::App* tool =
      command->add_subcommand("import-xla-fsdp", "Read the per-rank .pth files of PyTorch/XLA's FSDP");
  tool->add_option("--ckpt_prefix,--ckpt-prefix", options->prefix,
                   "What the files' names begin with, with the folder")
      ->required();
  tool->add_option("--ckpt_suffix,--ckpt-suffix", options->suffix, "Shell pattern of the rest")
      ->default_val("*.pth");
  tool->add_option("-o,--output", options->output, "FILE.safetensors, or a folder of checkpoints")
      ->required();
  tool->add_option("--ranks", options->ranks, "Of a checkpoint: number of shard files")->default_val("1");
  tool->add_flag("--without-optimizer", options->without_optimizer, "Parameters and buffers alone");
  tool->add_flag("--for-library", options->for_library,
                 "Optimizer state as load_module wants it, not tessera train");
  tool->add_option("--rename", options->rename, "FROM=TO: beginnings of names, in turn");
  tool->add_option("--recipe", options->recipe,
                   "Recipe to keep in the checkpoint, so that eval and predict know it")
      ->check(CLI::ExistingFile);
  tool->footer(R"(
The files hold {model, shard_metadata, optimizer}, as xm.save wrote them on each rank. Shards are joined, flattened
groups taken apart, padding dropped; Adam's moments come along. No Python code in the files is run: what is no plain
data is an error that names it. A ViT of vit_10b_fsdp_example has the names of recipes/vit_10b.toml:

  tessera checkpoint import-xla-fsdp --ckpt_prefix ckpts/epoch_300_rank_ --ckpt_suffix '*.ckpt' \
      --recipe recipes/vit_10b.toml -o runs/imported/checkpoints
  tessera checkpoint import-xla-fsdp --ckpt_prefix /tmp/mnist-fsdp/final_ckpt --ckpt_suffix '_rank-*-of-*.pth' \
      -o mnist.safetensors --without-optimizer)");
}

void add_export(CLI::App* command, const std::shared_ptr<CheckpointOptions>& options) {
  CLI::App* tool =
      command->add_subcommand("export", "One safetensors file with timm's names, for Python and others");
  options->places.resize(1);
  tool->add_option("path", options->places[0], "A run's folder or a checkpoint's")->required();
  tool->add_option("output", options->output, "File to write")->required();
  tool->add_flag("--ema", options->average, "The moving average of the parameters in their place");
  tool->add_option("--which", options->which, "Of a run: latest, best or a step");
  best_by_default(tool, options);
  tool->footer(
      "\nThe same as `tessera checkpoint consolidate path -o output`.\n\n"
      "  tessera checkpoint export runs/quickstart weights.safetensors");
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
