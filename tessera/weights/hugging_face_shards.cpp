// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/hugging_face_shards.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::weights {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Some of a source's tensors.
class Selected final : public checkpoint::TensorSource {
 public:
  Selected(checkpoint::TensorSource& source, std::vector<size_t> numbers)
      : source_(source), numbers_(std::move(numbers)) {
    for (const size_t number : numbers_) tensors_.push_back(source_.tensors()[number]);
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    source_.read(numbers_.at(tensor), begin, out);
  }
  const checkpoint::Progress& progress() const override { return source_.progress(); }

 private:
  checkpoint::TensorSource& source_;
  std::vector<size_t> numbers_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
};

std::string shard_name(size_t number, size_t count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name.data();
}

/// A reader takes model.safetensors before an index, so what is left of an earlier export would be read in
/// place of this one.
void remove_others(const fs::path& folder, const std::set<std::string>& kept) {
  static const std::regex ours(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)");
  std::vector<fs::path> old;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (std::regex_match(name, ours) && !kept.contains(name)) old.push_back(at->path());
  }
  if (failed)
    user_error({.where = "weights.export",
                .problem = concat("cannot list ", folder.string(), ": ", failed.message())});
  for (const auto& path : old) {
    std::error_code error;
    fs::remove(path, error);
    if (error)
      user_error({.where = "weights.export",
                  .problem = concat("cannot remove ", path.string(), ": ", error.message())});
  }
}

}  // namespace

int64_t shard_bytes_of(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      std::pair("kb", 1e3), std::pair("mb", 1e6), std::pair("gb", 1e9), std::pair("tb", 1e12)};
  const std::string small = lower(trimmed(text));
  std::string_view number = small;
  double unit = 1;
  for (const auto& [name, factor] : kUnits) {
    if (!number.ends_with(name)) continue;
    number = trimmed(number.substr(0, number.size() - name.size()));
    unit = factor;
    break;
  }
  const double bytes = parse_number<double>(number).value_or(0) * unit;
  if (!(bytes >= 1 && bytes <= 1e18)) {
    user_error({.where = "weights.shard_size",
                .problem = concat("the size of a file is \"", escape(text), '"'),
                .expected = "5GB, 500MB or a number of bytes"});
  }
  return static_cast<int64_t>(bytes);
}

std::vector<std::vector<size_t>> split_into_shards(const std::vector<int64_t>& bytes, int64_t most) {
  std::vector<std::vector<size_t>> shards;
  std::vector<size_t> open;
  int64_t held = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > most) {
      shards.push_back({i});
      continue;
    }
    if (held + bytes[i] > most) {
      shards.push_back(std::move(open));
      open.clear();
      held = 0;
    }
    open.push_back(i);
    held += bytes[i];
  }
  if (!open.empty() || shards.empty()) shards.push_back(std::move(open));
  return shards;
}

void write_hugging_face_tensors(checkpoint::TensorSource& source, const fs::path& folder, int64_t most,
                                const checkpoint::ConsolidateOptions& options) {
  checkpoint::check_convertible(options.dtype);
  const auto element = static_cast<int64_t>(formats::dtype_size(options.dtype));
  std::vector<int64_t> bytes;
  for (const auto& tensor : source.tensors()) bytes.push_back(checkpoint::count_of(tensor.shape) * element);
  const auto shards = split_into_shards(bytes, most);
  if (shards.size() == 1) {
    checkpoint::consolidate(source, folder / kWhole, options);
    remove_others(folder, {kWhole});
    return;
  }
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::json::object()}};
  int64_t total = 0;
  std::set<std::string> kept = {kIndex};
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shard_name(shard, shards.size());
    Selected selected(source, shards[shard]);
    checkpoint::consolidate(selected, folder / name, options);
    kept.insert(name);
    for (const size_t tensor : shards[shard]) {
      index["weight_map"][source.tensors()[tensor].name.substr(checkpoint::names::kParameter.size())] = name;
      total += bytes[tensor];
    }
  }
  index["metadata"]["total_size"] = total;
  write_file_atomic(folder / kIndex, json_text(index, 2) + "\n");
  remove_others(folder, kept);
}

}  // namespace tessera::weights
