#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

fs::path resolve(const std::string& path, const std::string& which) {
  const fs::path checkpoints = fs::path(path) / "checkpoints";
  const auto found =
      fs::is_directory(checkpoints) ? checkpoint::find(checkpoints, which) : checkpoint::find(path, path);
  if (!found) user_error("checkpoint.find", "a complete checkpoint: ", checkpoints.string(), " holds none");
  return *found;
}

int inspect(const fs::path& path) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
  int64_t elements = 0;
  for (const auto& tensor : manifest.tensors) {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    if (tensor.name.rfind("param/", 0) == 0) elements += count;
  }
  std::cout << path.string() << "\n  step " << manifest.progress.step << ", saved by " << manifest.world
            << " ranks, " << manifest.tensors.size() << " tensors, " << human_count(elements)
            << " parameters\n";
  for (const auto& tensor : manifest.tensors) {
    std::cout << "  " << tensor.name << "  " << tensor.dtype << " [";
    for (size_t i = 0; i < tensor.shape.size(); ++i) std::cout << (i > 0 ? ", " : "") << tensor.shape[i];
    std::cout << "]\n";
  }
  return kExitDone;
}

int verify(const fs::path& path) {
  const std::vector<std::string> faults = checkpoint::verify(path);
  for (const std::string& fault : faults) std::cout << fault << "\n";
  if (!faults.empty())
    user_error("checkpoint.verify", "a sound checkpoint: ", path.string(), " has ", faults.size(),
               faults.size() == 1 ? " fault" : " faults");
  std::cout << path.string() << " is sound\n";
  return kExitDone;
}

int export_weights(const fs::path& path, const std::string& output) {
  const auto manifest = checkpoint::read_manifest(path);
  checkpoint::export_safetensors(path, "param/", output,
                                 {{"format", "pt"},
                                  {"tessera.step", std::to_string(manifest.progress.step)},
                                  {"tessera.recipe", manifest.progress.recipe_toml}});
  std::cout << "wrote " << output << "\n";
  return kExitDone;
}

}  // namespace

Action add_checkpoint(CLI::App& app) {
  struct Options {
    std::string path, which = "latest", output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("checkpoint", "Inspect, verify and export checkpoints");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("path", options->path, "A run's folder or a checkpoint's")->required();
    sub->add_option("--which", options->which, "Of a run: latest, best or a step")->default_val("latest");
    return sub;
  };
  add("inspect", "Step, ranks, tensors with shapes");
  add("verify", "Check every checksum and that no part is missing");
  add("export", "One safetensors file with timm's names, for Python and others")
      ->add_option("output", options->output, "File to write")
      ->required();
  return [options, command] {
    const fs::path path = resolve(options->path, options->which);
    if (command->got_subcommand("inspect")) return inspect(path);
    if (command->got_subcommand("verify")) return verify(path);
    return export_weights(path, options->output);
  };
}

}  // namespace tessera::cli
