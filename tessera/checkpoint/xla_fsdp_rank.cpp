// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/xla_fsdp_rank.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/formats/safetensors.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

using formats::PickleValue;
using formats::TorchFile;
using Kind = PickleValue::Kind;

constexpr std::string_view kShard = "_fsdp_shard", kFlat = "_fsdp_wrapped_module.flat_param_";

[[noreturn]] void broken(const std::filesystem::path& path, const std::string& problem,
                         const std::string& expected = "", const std::string& hint = "") {
  user_error({.where = "checkpoint.import",
              .problem = concat(problem, " (", path.string(), ')'),
              .expected = expected,
              .hint = hint});
}

// A value under a key of a dict, of the kind that it must have.
struct XlaReader {
  const std::filesystem::path& path;

  const PickleValue& at(const PickleValue& dict, const std::string& key, Kind kind,
                        const char* expected) const {
    const auto* value = dict.is(Kind::kDict) ? dict.find(key) : nullptr;
    if (value == nullptr) broken(path, concat(escape(key), " is missing"), expected);
    if (!value->is(kind)) broken(path, concat(escape(key), " is ", value->describe()), expected);
    return *value;
  }
  int64_t integer(const PickleValue& dict, const std::string& key) const {
    return at(dict, key, Kind::kInt, "a whole number").number;
  }
  // A tuple, list or torch.Size of what `each` makes of its items.
  template <typename Each>
  auto list(const PickleValue& value, const std::string& what, const Each& each) const {
    std::vector<decltype(each(value))> found;
    const bool size =
        value.is(Kind::kObject) && value.text == "torch.Size" && value.items[0]->items.size() == 1;
    const PickleValue& items = size ? *value.items[0]->items[0] : value;
    if (!items.is(Kind::kList) && !items.is(Kind::kTuple)) {
      broken(path, concat(what, " is ", value.describe()), "a list");
    }
    for (const auto* item : items.items) found.push_back(each(*item));
    return found;
  }
  std::vector<int64_t> sizes(const PickleValue& value, const std::string& what) const {
    auto found = list(value, what, [&](const PickleValue& item) {
      if (!item.is(Kind::kInt) || item.number < 0)
        broken(path, concat(what, " has ", item.describe()), "whole numbers of at least 0");
      return item.number;
    });
    if (!formats::element_count(found)) broken(path, what + " has more elements than 63 bits can count");
    return found;
  }
  std::string text(const PickleValue& value, const std::string& what) const {
    if (!value.is(Kind::kString)) broken(path, concat(what, " is ", value.describe()), "a string");
    return value.text;
  }
};

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
}

std::string unwrapped(std::string name) {
  remove_all(name, "_fsdp_wrapped_module.");
  remove_all(name, "_fpw_module.");
  return name;
}

// Where the shard's own name begins within a key: at a dot's follower, or the key's start.
size_t shard_name_at(const std::string& key) {
  for (size_t at = key.find(kShard); at != std::string::npos; at = key.find(kShard, at + 1)) {
    if (at == 0 || key[at - 1] == '.') return at;
  }
  return std::string::npos;
}

std::vector<XlaParameter> parts_of(const XlaReader& reader, const PickleValue& metadata,
                                   const std::string& key) {
  const size_t at = shard_name_at(key);
  const std::string unit = at == 0 ? "" : key.substr(0, at - 1), leaf = key.substr(at);
  const auto& infos = reader.at(metadata, "shard_info", Kind::kDict, "shards' facts");
  const auto& info =
      reader.at(reader.at(infos, unit, Kind::kDict, "a unit's shards"), leaf, Kind::kDict, "a shard's facts");
  const auto* size = info.find("_orig_size");
  if (size == nullptr) broken(reader.path, concat("_orig_size of ", escape(key), " is missing"));
  const std::string original = reader.at(info, "_orig_name", Kind::kString, "a name").text;
  const std::string full = unit.empty() ? original : concat(unit, '.', original);
  if (full.find(kFlat) == std::string::npos)
    return {{unwrapped(full), reader.sizes(*size, "_orig_size of " + full)}};

  const auto& flattened = reader.at(metadata, "flatten_info", Kind::kDict, "flattened groups");
  const auto* group = flattened.find(full);
  if (group == nullptr) broken(reader.path, concat("flatten_info has no group ", escape(full)));
  const auto columns = reader.list(*group, "a group's facts", [](const PickleValue& item) { return &item; });
  if (columns.size() != 3)
    broken(reader.path, concat("flatten_info has ", columns.size(), " lists for ", escape(full)),
           "names, shapes and sizes");
  const auto names =
      reader.list(*columns[0], "names", [&](const PickleValue& item) { return reader.text(item, "a name"); });
  const auto shapes = reader.list(*columns[1], "shapes",
                                  [&](const PickleValue& item) { return reader.sizes(item, "a shape"); });
  if (names.size() != shapes.size())
    broken(reader.path, concat("flatten_info has ", shapes.size(), " shapes for ", escape(full)),
           concat("one for each of its ", names.size(), " names"));
  std::vector<XlaParameter> parts;
  const std::string parent = full.substr(0, full.rfind('.') + 1);
  for (size_t i = 0; i < names.size(); ++i) parts.push_back({unwrapped(parent + names[i]), shapes[i]});
  return parts;
}

// A number that torch keeps as an int, a float or a tensor of one number.
int64_t step_number(const TorchFile& file, const PickleValue& value) {
  if (value.is(Kind::kInt)) return value.number;
  if (value.is(Kind::kFloat)) return static_cast<int64_t>(std::clamp(value.real, 0.0, 9e15));
  const auto tensor = file.tensor(value, "step");
  if (tensor.dtype != "F32" || formats::element_count(tensor.shape) != 1) {
    broken(file.file().path(),
           concat("the optimizer's step is ", tensor.dtype, ' ', shape_text(tensor.shape)),
           "one float32 value");
  }
  float step = 0;
  file.read(tensor, 0, std::as_writable_bytes(std::span(&step, 1)));
  return step >= 0 && step < 9e15F ? static_cast<int64_t>(step) : 0;
}

// The optimizer numbers its parameters in the model's order, group after group.
void read_optimizer(const TorchFile& file, const PickleValue& optimizer, XlaRank& result) {
  const XlaReader reader{result.path};
  std::vector<XlaEntry*> shards;
  for (auto& entry : result.entries) {
    if (is_xla_shard(entry.key)) shards.push_back(&entry);
  }
  const auto& groups = reader.at(optimizer, "param_groups", Kind::kList, "the optimizer's groups").items;
  if (groups.size() != 1) {
    broken(result.path,
           concat("the optimizer has ", groups.size(),
                  " groups of parameters, whose order in the model is not known"),
           "one group", "import without the optimizer: --without-optimizer");
  }
  const auto& order = reader.at(*groups[0], "params", Kind::kList, "the group's parameters").items;
  if (order.size() != shards.size()) {
    broken(result.path, concat("the optimizer has ", order.size(), " parameters"),
           concat("all ", shards.size(), " parameters of the model"),
           "import without the optimizer: --without-optimizer");
  }
  for (const auto& [index, values] :
       reader.at(optimizer, "state", Kind::kDict, "the optimizer's state").entries) {
    if (!index->is(Kind::kInt) || index->number < 0 || index->number >= static_cast<int64_t>(shards.size())) {
      broken(result.path,
             concat("the optimizer has state for parameter ",
                    index->is(Kind::kInt) ? std::to_string(index->number) : index->describe()),
             concat("an index below ", shards.size()));
    }
    XlaEntry& shard = *shards[static_cast<size_t>(index->number)];
    for (const auto& [kind, value] : values->entries) {
      const std::string name = reader.text(*kind, "a kind of state");
      if (name == "step")
        result.optimizer_steps = std::max(result.optimizer_steps, step_number(file, *value));
      if (name == "step" || !TorchFile::is_tensor(*value)) continue;
      const auto tensor = file.tensor(*value, shard.key);
      if (tensor.shape != shard.tensor.shape || !tensor.contiguous()) {
        broken(result.path,
               concat(name, " of ", escape(shard.key), " has the shape ", shape_text(tensor.shape)),
               shape_text(shard.tensor.shape));
      }
      shard.state[name] = tensor;
    }
  }
  result.has_optimizer = true;
}

}  // namespace

bool is_xla_shard(const std::string& key) { return shard_name_at(key) != std::string::npos; }

XlaRank read_xla_rank(const std::filesystem::path& path, bool with_optimizer) {
  const TorchFile file(path);
  const XlaReader reader{path};
  const auto& metadata = reader.at(file.root(), "shard_metadata", Kind::kDict, "model.get_shard_metadata()");
  XlaRank result{.path = path,
                 .rank = reader.integer(metadata, "rank"),
                 .world = reader.integer(metadata, "world_size"),
                 .entries = {},
                 .parts = {}};
  for (const auto& [key, value] :
       reader.at(file.root(), "model", Kind::kDict, "model.state_dict()").entries) {
    const std::string name = reader.text(*key, "a tensor's name");
    result.entries.push_back({name, file.tensor(*value, name)});
    const auto& tensor = result.entries.back().tensor;
    if (!tensor.contiguous()) broken(path, concat("tensor ", escape(name), " is not contiguous"));
    result.parts.push_back(is_xla_shard(name) ? parts_of(reader, metadata, name)
                                              : std::vector<XlaParameter>{{unwrapped(name), tensor.shape}});
  }
  const auto* optimizer = file.root().find("optimizer");
  if (with_optimizer && optimizer != nullptr) read_optimizer(file, *optimizer, result);
  return result;
}

}  // namespace tessera::checkpoint
