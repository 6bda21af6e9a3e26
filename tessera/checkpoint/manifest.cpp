// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_set>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr std::string_view kTail = "\"xxh3\": \"";
constexpr size_t kTailBytes = kTail.size() + 16 + 3;  // the digits, a quote, a brace, a line end

json parse_json(std::string_view text, int max_depth) {
  return json::parse(text.begin(), text.end(), [=](int depth, json::parse_event_t, json&) {
    if (depth > max_depth)
      user_error({.where = "checkpoint.manifest",
                  .problem = "JSON is nested too deeply",
                  .expected = concat("at most ", max_depth, " levels")});
    return true;
  });
}

// What the loop gave as JSON text; empty stays empty (null).
json embedded(const std::string& text, const char* what) {
  if (text.empty()) return nullptr;
  try {
    return parse_json(text, kMaxDepth - 1);  // one level more within the manifest
  } catch (const json::exception& error) {
    user_error({.where = "checkpoint.save",
                .problem = concat("the run's ", what, " is not valid JSON: ", error.what())});
  }
}

std::string text_of(const json& value) { return value.is_null() ? std::string() : json_text(value); }

std::string checksum_of(std::string_view text) {
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(text)));
  return checksum.hex();
}

// Everything below reads; a wrong type or a missing key is a json::exception, a wrong value a UserError.

struct Reader {
  const std::string& where;

  [[noreturn]] void broken(const std::string& problem, const std::string& expected = "") const {
    user_error({.where = "checkpoint.manifest",
                .problem = concat(where, " is damaged: ", problem),
                .expected = expected});
  }
  int64_t integer(const json& value) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        (value.is_number_unsigned() &&
         value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
      broken(concat("it has the value ", json_text(value)), "a whole number of at least 0");
    }
    return value.get<int64_t>();
  }
  Progress progress(const json& root) const {
    return {.step = integer(root.at("step")),
            .json = text_of(root.at("progress")),
            .recipe_toml = root.at("recipe").get<std::string>(),
            .plan_json = text_of(root.at("plan")),
            .model_json = text_of(root.at("model"))};
  }
  std::vector<ShardFact> shards(const json& list, int64_t world) const {
    if (!list.is_array() || world < 1 || static_cast<int64_t>(list.size()) != world) {
      broken(concat("it lists ", list.size(), " shards"), concat("one for each of ", world, " ranks"));
    }
    std::vector<ShardFact> shards;
    for (const json& shard : list) {
      const auto name = names::shard(static_cast<int64_t>(shards.size()), world);
      if (shard.at("file").get<std::string>() != name) {
        broken(concat("it lists the shard ", json_text(shard.at("file"))), name);
      }
      shards.push_back({.bytes = static_cast<uint64_t>(integer(shard.at("bytes"))),
                        .checksum = shard.at("xxh3").get<std::string>(),
                        .host = shard.value("host", std::string())});
    }
    return shards;
  }
  Manifest::Tensor tensor(const json& value) const {
    Manifest::Tensor tensor{.name = value.at("name").get<std::string>(),
                            .dtype = value.at("dtype").get<std::string>(),
                            .shape = {}};
    formats::dtype_size(tensor.dtype);
    if (!value.at("shape").is_array())
      broken(concat(escape(tensor.name), " has the shape ", json_text(value.at("shape"))), "a list");
    for (const json& dim : value.at("shape")) tensor.shape.push_back(integer(dim));
    int64_t bytes = 0;
    const auto count = formats::element_count(tensor.shape);
    if (!count ||
        __builtin_mul_overflow(*count, static_cast<int64_t>(formats::dtype_size(tensor.dtype)), &bytes)) {
      broken(concat(escape(tensor.name), ' ', shape_text(tensor.shape), " has a size beyond 63 bits"));
    }
    return tensor;
  }
  // The boxes that a tensor's regions name by number: [[[begin, end] for each dim], ...].
  std::vector<Box> boxes(const json& value, const Manifest::Tensor& tensor) const {
    std::vector<Box> boxes;
    if (!value.contains("boxes")) return boxes;
    for (const json& ranges : value.at("boxes")) {
      Box& box = boxes.emplace_back();
      for (const json& range : ranges) box.dims.push_back({integer(range.at(0)), integer(range.at(1))});
      if (!box.fits(tensor.shape)) {
        broken(concat(escape(tensor.name), " has the box ", json_text(ranges)),
               concat("a box within ", shape_text(tensor.shape)));
      }
    }
    return boxes;
  }
  // [rank, begin, end] of the whole tensor, or [rank, begin, end, number of the box].
  StoredRegion region(const json& item, const Manifest::Tensor& tensor, const std::vector<Box>& boxes,
                      const char* kind) const {
    const bool in_box = item.is_array() && item.size() == 4 && !boxes.empty();
    if (!in_box && (!item.is_array() || item.size() != 3)) {
      broken(concat(escape(tensor.name), " has the ", kind, ' ', json_text(item)),
             concat("[rank, begin, end", boxes.empty() ? "]" : "] or [rank, begin, end, box]"));
    }
    const int64_t number = in_box ? integer(item[3]) : 0;
    if (in_box && number >= static_cast<int64_t>(boxes.size())) {
      broken(concat(escape(tensor.name), " has the ", kind, ' ', json_text(item)),
             concat("a box below ", boxes.size()));
    }
    return {.shard = integer(item[0]),
            .region = {in_box ? boxes[static_cast<size_t>(number)] : Box::whole(tensor.shape),
                       integer(item[1]), integer(item[2])}};
  }
  std::vector<StoredRegion> regions(const json& list, const Manifest::Tensor& tensor,
                                    const std::vector<Box>& boxes, int64_t world) const {
    std::vector<StoredRegion> regions;
    std::vector<Region> places;
    const bool none = count_of(tensor.shape) == 0;
    if (!list.is_array()) broken(concat(escape(tensor.name), " has the regions ", json_text(list)), "a list");
    for (const json& item : list) {
      regions.push_back(region(item, tensor, boxes, "region"));
      const auto& [shard, added, copies] = regions.back();
      const bool filled = added.numel() > 0 || (none && list.size() == 1);
      const bool sorted = places.empty() || places.back() < added;
      if (shard >= world || !added.fits(tensor.shape) || !filled || !sorted) {
        broken(
            concat(escape(tensor.name), " has the region ", json_text(item)),
            concat("regions of ", shape_text(tensor.shape), " in ascending order, on ranks below ", world));
      }
      places.push_back(added);
    }
    if (const auto fault = partition_fault(places, tensor.shape)) {
      broken(concat(escape(tensor.name), ": ", *fault));
    }
    if (regions.empty()) broken(concat(escape(tensor.name), " has no region"));
    return regions;
  }
  // What further shards have, each exactly one of the regions.
  void copies(const json& list, const Manifest::Tensor& tensor, const std::vector<Box>& boxes, int64_t world,
              std::vector<StoredRegion>& regions) const {
    if (!list.is_array()) broken(concat(escape(tensor.name), " has the copies ", json_text(list)), "a list");
    for (const json& item : list) {
      const StoredRegion copy = region(item, tensor, boxes, "copy");
      const auto at = std::lower_bound(
          regions.begin(), regions.end(), copy.region,
          [](const StoredRegion& region, const Region& value) { return region.region < value; });
      const bool known = at != regions.end() && at->region == copy.region && copy.shard < world &&
                         (at->copies.empty() ? at->shard : at->copies.back()) < copy.shard;
      if (!known)
        broken(concat(escape(tensor.name), " has the copy ", json_text(item)),
               "copies of its regions, in the order of ranks");
      at->copies.push_back(copy.shard);
    }
  }
  // Schema 1 has no boxes and calls regions slices.
  void placed(const json& value, StoredManifest& stored) const {
    const auto& tensor = stored.manifest.tensors.back();
    const bool first_schema = stored.manifest.schema == 1;
    const auto named = first_schema ? std::vector<Box>() : boxes(value, tensor);
    const json& list = value.at(first_schema ? "slices" : "regions");
    stored.regions.push_back(regions(list, tensor, named, stored.manifest.world));
    if (!value.contains("copies")) return;
    copies(value.at("copies"), tensor, named, stored.manifest.world, stored.regions.back());
  }
  StoredManifest all(const json& root) const {
    StoredManifest stored;
    stored.manifest.schema = integer(root.at("schema"));
    if (stored.manifest.schema > kSchema) {
      user_error({.where = "checkpoint.manifest",
                  .problem = concat(where, " has schema ", stored.manifest.schema),
                  .expected = concat("schema ", kSchema, " or older"),
                  .hint = "it was saved by a newer version of this program; use that version"});
    }
    if (stored.manifest.schema < 1) broken("it has schema 0", concat("schema 1 to ", kSchema));
    stored.manifest.world = integer(root.at("world"));
    stored.manifest.progress = progress(root);
    stored.shards = shards(root.at("shards"), stored.manifest.world);
    if (!root.at("tensors").is_array()) broken("its tensors are not a list");
    std::unordered_set<std::string> seen;
    for (const json& value : root.at("tensors")) {
      const auto& added = stored.manifest.tensors.emplace_back(tensor(value));
      if (!seen.insert(added.name).second) broken(concat("it lists ", escape(added.name), " twice"));
      placed(value, stored);
    }
    return stored;
  }
};

json tensor_json(const Manifest::Tensor& tensor, const std::vector<StoredRegion>& regions) {
  json boxes = json::array(), list = json::array(), copies = json::array();
  const Box whole = Box::whole(tensor.shape);
  const Box* last = &whole;  // regions of one box follow each other
  for (const StoredRegion& stored : regions) {
    const Region& region = stored.region;
    if (region.box != *last) {
      last = &region.box;
      json& ranges = boxes.emplace_back(json::array());
      for (const DimRange& range : region.box.dims) ranges.push_back({range.begin, range.end});
    }
    const auto item = [&](int64_t rank) {
      json item = {rank, region.begin, region.end};
      if (region.box != whole) item.push_back(boxes.size() - 1);
      return item;
    };
    list.push_back(item(stored.shard));
    for (const int64_t copy : stored.copies) copies.push_back(item(copy));
  }
  json all = {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}};
  if (!boxes.empty()) all["boxes"] = boxes;
  all["regions"] = list;
  if (!copies.empty()) all["copies"] = copies;
  return all;
}

}  // namespace

int64_t count_of(const std::vector<int64_t>& shape) {
  const auto count = formats::element_count(shape);
  TESSERA_CHECK(count, "shape ", shape_text(shape));
  return *count;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (const int64_t dim : shape) dims.push_back(std::to_string(dim));
  return '[' + join(dims, ", ") + ']';
}

std::string manifest_text(const StoredManifest& stored) {
  const auto& [schema, world, progress, tensors] = stored.manifest;
  std::string text = concat("{\"format\": \"tessera checkpoint\",\n\"schema\": ", kSchema,
                            ",\n\"step\": ", progress.step, ",\n\"world\": ", world, ",\n");
  const auto field = [&](const char* name, const json& value) {
    text += concat('"', name, "\": ", json_text(value), ",\n");
  };
  field("progress", embedded(progress.json, "progress"));
  field("recipe", progress.recipe_toml);
  field("plan", embedded(progress.plan_json, "plan"));
  field("model", embedded(progress.model_json, "model"));
  text += "\"shards\": [";
  for (int64_t rank = 0; rank < world; ++rank) {
    const auto& [bytes, checksum, host] = stored.shards.at(static_cast<size_t>(rank));
    json shard = {{"file", names::shard(rank, world)}, {"bytes", bytes}, {"xxh3", checksum}};
    if (!host.empty()) shard["host"] = host;
    text += (rank == 0 ? "\n" : ",\n") + json_text(shard);
  }
  text += "],\n\"tensors\": [";
  for (size_t i = 0; i < tensors.size(); ++i) {
    text += (i == 0 ? "\n" : ",\n") + json_text(tensor_json(tensors[i], stored.regions[i]));
  }
  text += "],\n";
  const std::string checksum = checksum_of(text);
  return text.append(kTail).append(checksum).append("\"}\n");
}

StoredManifest parse_manifest(std::string_view text, const std::string& where) {
  const Reader reader{where};
  try {
    return reader.all(parse_json(text, kMaxDepth));
  } catch (const json::parse_error& error) {
    reader.broken(concat("it is not valid JSON at byte ", error.byte));
  } catch (const json::exception& error) {
    reader.broken(concat("it does not follow schema ", kSchema, ": ", error.what()));
  }
}

namespace {

std::string manifest_of(const fs::path& checkpoint) {
  const fs::path path = checkpoint / names::kManifest;
  std::error_code ignored;
  if (!fs::is_directory(checkpoint, ignored)) {
    user_error({.where = "checkpoint.load",
                .problem = concat("there is no checkpoint folder ", checkpoint.string())});
  }
  if (!fs::exists(path, ignored)) {
    refuse_incomplete("checkpoint.load", checkpoint);
  }
  return read_file(path);
}

// What the last line states; empty without one.
std::string stated_seal(std::string_view text) {
  if (text.size() < kTailBytes || !text.substr(text.size() - kTailBytes).starts_with(kTail)) return {};
  return std::string(text.substr(text.size() - kTailBytes + kTail.size(), 16));
}

}  // namespace

std::string manifest_seal(const fs::path& checkpoint) { return stated_seal(manifest_of(checkpoint)); }

StoredManifest read_stored(const Folders& checkpoint) {
  const fs::path& folder = checkpoint.paths.at(0);
  const std::string where = (folder / names::kManifest).string(), text = manifest_of(folder);
  const std::string stated = stated_seal(text);
  if (!stated.empty()) {
    const auto found = checksum_of(std::string_view(text).substr(0, text.size() - kTailBytes));
    if (found != stated) {
      user_error({.where = "checkpoint.manifest",
                  .problem = concat(where, " has the checksum ", found),
                  .expected = escape(stated),
                  .hint = concat("the file was changed or damaged; ", advice_beside(folder))});
    }
  }
  auto stored = parse_manifest(text, where);
  if (stated.empty()) Reader{where}.broken("its last line has no checksum");
  for (const auto& other : std::span(checkpoint.paths).subspan(1)) {
    if (manifest_of(other) != text) {
      user_error(
          {.where = "checkpoint.manifest",
           .problem = concat("the manifest in ", other.string(), " differs from that in ", folder.string()),
           .expected = "folders with parts of one save",
           .hint = "give the folders of one step of one run"});
    }
  }
  return stored;
}

Manifest read_manifest(const Folders& checkpoint) { return read_stored(checkpoint).manifest; }

}  // namespace tessera::checkpoint
