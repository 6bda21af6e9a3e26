// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/stored_checkpoint.h"
#include "tessera/formats/zip_directory.h"
#include "tessera/recipe/on_damage.h"

namespace tessera::weights {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndexSuffix = ".index.json";

/// The file of a folder of Hugging Face or timm.
fs::path file_in(const FileSystem& files, const fs::path& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}) {
    if (files.exists(folder / name)) return folder / name;
  }
  std::vector<fs::path> found;
  std::error_code error;
  for (const FolderEntry& entry : files.list(folder, error)) {
    const std::string extension = fs::path(entry.name).extension();
    for (const char* known : {".safetensors", ".npz", ".pth", ".pt", ".bin", ".tar"}) {
      if (extension == known) found.push_back(folder / entry.name);
    }
  }
  if (error)
    user_error({.where = "weights.open",
                .problem = concat("cannot read folder ", folder.string(), ": ", error.message())});
  if (found.size() != 1) {
    user_error(
        {.where = "weights.open",
         .problem = concat(folder.string(),
                           found.empty() ? " has no file of weights" : " has several files of weights"),
         .expected = "a checkpoint, or a folder with model.safetensors, its index, or one file of weights",
         .hint = found.empty() ? "" : "name the file"});
  }
  return found.front();
}

/// Of a run or a folder of checkpoints the best one, else the latest; none where `path` is neither.
std::optional<checkpoint::Choice> own_checkpoint(const fs::path& path) {
  if (!fs::exists(path / "manifest.json") && !fs::is_directory(path / "checkpoints") &&
      !fs::exists(path / "best.json") && !checkpoint::holds_checkpoints(path))
    return std::nullopt;
  return checkpoint::choose(path, checkpoint::kBestOrLatest);
}

}  // namespace

Opened open_file(const fs::path& path, bool ema, const FileSystem& files) {
  Opened opened;
  opened.files = &files;
  const bool is_folder = files.is_folder(path);
  if (is_folder && &files == &local_files()) {
    if (const auto found = own_checkpoint(path)) {
      opened.kind = Opened::Kind::kTessera;
      opened.file = found->path;
      opened.source = std::make_shared<checkpoint::StoredCheckpoint>(checkpoint::Folders(found->path));
      opened.recipe_toml = opened.source->progress().recipe_toml;
      opened.passed_over = recipe::passed_over(*found, opened.recipe_toml);
      return opened;
    }
  }
  opened.file = is_folder ? file_in(files, path) : path;
  if (opened.file.string().ends_with(kIndexSuffix)) {
    opened.source = open_sharded_safetensors(files, opened.file);
    return opened;
  }
  auto file = files.open(opened.file);
  std::array<std::byte, 9> start{};
  const auto bytes = std::span(start).first(std::min<uint64_t>(file->size(), start.size()));
  file->read(0, bytes);
  if (formats::looks_like_zip(bytes)) {
    const auto members = formats::read_zip_directory(*file);
    const bool arrays = std::all_of(members.begin(), members.end(),
                                    [](const auto& member) { return member.name.ends_with(".npy"); });
    opened.kind = arrays ? Opened::Kind::kNpz : Opened::Kind::kTorch;
    opened.source = arrays ? open_npz(std::move(file)) : open_torch(std::move(file), ema, opened);
  } else if (bytes.size() == start.size() && start[8] == std::byte{'{'}) {
    opened.source = open_safetensors(std::move(file), opened.metadata);
    if (const auto at = opened.metadata.find("tessera.recipe"); at != opened.metadata.end())
      opened.recipe_toml = at->second;
  } else if (!bytes.empty() && bytes[0] == std::byte{0x80}) {
    opened.kind = Opened::Kind::kTorch;
    opened.source = open_torch(std::move(file), ema, opened);  // says what is wrong with the older form
  } else {
    user_error(
        {.where = "weights.open",
         .problem = concat(opened.file.string(), " is not a file of weights: it begins with other bytes"),
         .expected = "safetensors, torch.save or .npz"});
  }
  return opened;
}

}  // namespace tessera::weights
