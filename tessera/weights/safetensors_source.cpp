// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors.h"
#include "tessera/weights/files.h"

namespace tessera::weights {
namespace fs = std::filesystem;
namespace {

class SafetensorsSource final : public checkpoint::TensorSource {
 public:
  void add(std::shared_ptr<formats::SafetensorsReader> file, const formats::SafetensorsEntry& entry) {
    tensors_.push_back({entry.name, entry.dtype, entry.shape});
    entries_.push_back({std::move(file), &entry});
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  const checkpoint::Progress& progress() const override { return progress_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    const Entry& place = entries_.at(tensor);
    place.file->read(*place.entry, static_cast<uint64_t>(begin) * formats::dtype_size(place.entry->dtype),
                     out);
  }

 private:
  struct Entry {
    std::shared_ptr<formats::SafetensorsReader> file;
    const formats::SafetensorsEntry* entry = nullptr;
  };
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  std::vector<Entry> entries_;
  checkpoint::Progress progress_;
};

}  // namespace

std::shared_ptr<checkpoint::TensorSource> open_safetensors(std::unique_ptr<const ByteSource> file,
                                                           std::map<std::string, std::string>& metadata) {
  const auto reader = std::make_shared<formats::SafetensorsReader>(std::move(file));
  metadata = reader->metadata();
  auto source = std::make_shared<SafetensorsSource>();
  for (const auto& entry : reader->entries()) source->add(reader, entry);
  return source;
}

std::map<std::string, std::string> parse_index(const std::string& text, const std::string& where) {
  const auto wrong = [&](const std::string& found) {
    user_error({.where = "weights.index",
                .problem = concat(where, " has ", found),
                .expected = "{\"weight_map\": {tensor: file, ...}}"});
  };
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) wrong("no valid JSON");
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    wrong("no object weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) wrong(concat("no file for ", escape(name)));
    const std::string path = file.get<std::string>();
    if (path.empty() || path.find('/') != std::string::npos || path.find('\0') != std::string::npos ||
        path == "..") {
      wrong(concat("the file name \"", escape(path), "\", which is not beside it"));
    }
    files.emplace(name, path);
  }
  return files;
}

std::shared_ptr<checkpoint::TensorSource> open_sharded_safetensors(const FileSystem& files,
                                                                   const fs::path& index) {
  std::map<std::string, std::shared_ptr<formats::SafetensorsReader>> open;
  auto source = std::make_shared<SafetensorsSource>();
  for (const auto& [name, file] : parse_index(files.read_whole(index), index.string())) {
    auto& reader = open[file];
    if (!reader)
      reader = std::make_shared<formats::SafetensorsReader>(files.open(index.parent_path() / file));
    const auto* entry = reader->find(name);
    if (entry == nullptr) {
      user_error({.where = "weights.index",
                  .problem = concat(escape(file), " has no tensor ", escape(name), ", which ", index.string(),
                                    " names"),
                  .hint = "the files may be parts of different models"});
    }
    source->add(reader, *entry);
  }
  return source;
}

}  // namespace tessera::weights
