// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/output_file.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/tools.h"
#include "tessera/formats/safetensors.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

struct Chosen {
  size_t tensor = 0;
  formats::SafetensorsEntry entry;  // as it is written
};

// The name without "param/" ("ema/" where the average is wanted) or "buffer/"; none for other state.
std::optional<std::string> weight_name(const std::string& name, bool average) {
  for (const std::string_view prefix : {average ? names::kAverage : names::kParameter, names::kBuffer}) {
    if (name.starts_with(prefix) && name.size() > prefix.size()) return name.substr(prefix.size());
  }
  return std::nullopt;
}

// "adamw.exp_avg/, param/": what the names begin with, up to the first '/'.
std::string beginnings(const TensorSource& source) {
  std::set<std::string> found;
  for (const auto& tensor : source.tensors()) found.insert(tensor.name.substr(0, tensor.name.find('/') + 1));
  found.erase("");
  return found.empty() ? "none" : join({found.begin(), found.end()}, ", ");
}

std::vector<Chosen> choose(const TensorSource& source, const ConsolidateOptions& options) {
  std::vector<Chosen> chosen;
  std::set<std::string> names;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const auto& tensor = source.tensors()[i];
    const auto weight = weight_name(tensor.name, options.average);
    if (!weight && !options.with_state) continue;
    const bool converted = weight && !options.dtype.empty() && is_floating(tensor.dtype);
    const auto& entry =
        chosen.emplace_back(Chosen{i, {weight.value_or(tensor.name), tensor.dtype, tensor.shape}}).entry;
    if (converted) chosen.back().entry.dtype = options.dtype;
    if (!names.insert(entry.name).second) {
      user_error({.where = "checkpoint.consolidate",
                  .problem = concat("the checkpoint has a parameter and a buffer with the same name, ",
                                    escape(entry.name)),
                  .expected = "different names"});
    }
  }
  const bool any = std::ranges::any_of(source.tensors(), [&](const auto& tensor) {
    return tensor.name.starts_with(options.average ? names::kAverage : names::kParameter);
  });
  if (options.average && !any) {
    user_error({.where = "checkpoint.consolidate",
                .problem = concat("the checkpoint has no moving average of the weights (ema/...), only ",
                                  beginnings(source)),
                .hint = "export the weights themselves, without the average"});
  }
  if (chosen.empty()) {
    user_error(
        {.where = "checkpoint.consolidate",
         .problem = concat("the checkpoint has no parameters (param/...), only ", beginnings(source))});
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Chosen& a, const Chosen& b) { return formats::safetensors_order(a.entry, b.entry); });
  return chosen;
}

void write_tensor(TensorSource& source, const Chosen& chosen, formats::SafetensorsWriter& writer,
                  std::vector<std::byte>& window) {
  const auto& tensor = source.tensors()[chosen.tensor];
  const int64_t count = count_of(tensor.shape);
  const auto size = static_cast<int64_t>(formats::dtype_size(tensor.dtype));
  const int64_t most = static_cast<int64_t>(kWindowBytes) / size;
  for (int64_t begin = 0; begin < count; begin += most) {
    window.resize(static_cast<size_t>(std::min(most, count - begin) * size));
    source.read(chosen.tensor, begin, window);
    if (tensor.dtype == chosen.entry.dtype) {
      writer.write(window);
    } else {
      writer.write(convert(window, tensor.dtype, chosen.entry.dtype));
    }
  }
}

/// The names of the classes as a JSON list; "[]": none are known.
std::string classes_json(const Progress& progress) {
  const auto json = nlohmann::json::parse(progress.json, nullptr, /*allow_exceptions=*/false);
  return json_text(json.is_object() ? json.value("classes", nlohmann::json::array())
                                    : nlohmann::json::array());
}

}  // namespace

std::string without_local_paths(std::string_view toml) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < toml.size(); ++i) {
    if (toml[i] == '\n') quoted = false;  // to_toml() writes no text of several lines
    if (toml[i] == '"' && (i == 0 || toml[i - 1] != '\\')) quoted = !quoted;
    const bool begins = quoted && toml[i] == '/' && std::string_view("\":=,").find(toml[i - 1]) < 4;
    if (!begins) {
      out += toml[i];
      continue;
    }
    const size_t end = std::min({toml.find_first_of("\",\n", i), toml.find("::", i), toml.size()});
    std::string_view path = toml.substr(i, end - i);
    while (path.ends_with('/')) path.remove_suffix(1);
    out += path.substr(path.rfind('/') + 1);  // npos + 1: all that is left of "/"
    i = end - 1;
  }
  return out;
}

void consolidate(TensorSource& source, const fs::path& output, const ConsolidateOptions& options) {
  if (!options.dtype.empty()) check_convertible(options.dtype);
  const auto chosen = choose(source, options);
  std::vector<formats::SafetensorsEntry> entries;
  for (const auto& one : chosen) entries.push_back(one.entry);
  auto metadata = options.metadata;
  metadata.insert({{"format", "pt"},
                   {"tessera.step", std::to_string(source.progress().step)},
                   {"tessera.recipe", without_local_paths(source.progress().recipe_toml)},
                   {"tessera.classes", classes_json(source.progress())}});

  const OutputFile file(output);
  formats::SafetensorsWriter writer(file.write_to(), entries, metadata);
  std::vector<std::byte> window;
  for (const auto& one : chosen) write_tensor(source, one, writer, window);
  writer.finish();
  file.commit();
}

}  // namespace tessera::checkpoint
