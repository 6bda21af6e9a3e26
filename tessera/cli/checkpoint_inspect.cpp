// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/checkpoint_inspect.h"

#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/names.h"
#include "tessera/formats/safetensors.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using checkpoint::Inspection;
using checkpoint::Manifest;

constexpr size_t kRegionsListed = 4;

int64_t bytes_of(const Manifest::Tensor& tensor) {
  return checkpoint::count_of(tensor.shape) * static_cast<int64_t>(formats::dtype_size(tensor.dtype));
}

// Elements and bytes of the tensors of one kind: "param/", "adamw.exp_avg/", ...
struct Total {
  int64_t tensors = 0, elements = 0, bytes = 0;
};
std::map<std::string, Total> totals_by_kind(const Manifest& manifest) {
  std::map<std::string, Total> totals;
  for (const auto& tensor : manifest.tensors) {
    Total& total = totals[tensor.name.substr(0, tensor.name.find('/'))];
    ++total.tensors;
    total.elements += checkpoint::count_of(tensor.shape);
    total.bytes += bytes_of(tensor);
  }
  return totals;
}

// "[0:46] rank 0, [46:91] rank 1", "[0:7, 0:5] rank 0, ..." of boxes, or the rank that has it whole.
std::string regions_text(const std::vector<checkpoint::StoredRegion>& regions,
                         const std::vector<int64_t>& shape) {
  const auto ranks = [](const checkpoint::StoredRegion& region) {
    std::string text = concat("rank ", region.shard);
    for (const int64_t copy : region.copies) text += concat(" and ", copy);
    return text;
  };
  if (regions.size() == 1) return ranks(regions[0]);
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(regions.size(), kRegionsListed); ++i) {
    words.push_back(concat(checkpoint::names::region("", regions[i].region, shape), ' ', ranks(regions[i])));
  }
  if (regions.size() > kRegionsListed) words.push_back(concat("... ", regions.size(), " regions"));
  return join(words, ", ");
}

// The facts of the run, as far as this program understands its recipe.
std::vector<std::string> recipe_facts(const std::string& toml) {
  if (toml.empty()) return {"no recipe"};
  try {
    const auto recipe = recipe::parse_recipe(toml, "manifest", ".", {});
    return {concat("recipe \"", recipe.name, "\", data ", recipe.data.source),
            concat(arch::describe(recipe.model), ", ", recipe.model.classes(), " classes")};
  } catch (const UserError& error) {
    return {concat("a recipe that this version does not understand: ", error.what())};
  }
}

void print_text(const Inspection& inspection, std::ostream& out) {
  const auto& [stored, files] = inspection;
  const Manifest& manifest = stored.manifest;
  out << "step " << manifest.progress.step << ", saved by " << manifest.world
      << (manifest.world == 1 ? " rank\n" : " ranks\n");
  for (const auto& fact : recipe_facts(manifest.progress.recipe_toml)) out << "  " << fact << "\n";
  for (const auto& [kind, total] : totals_by_kind(manifest)) {
    out << "  " << kind << ": " << total.tensors << " tensors, " << human_count(total.elements)
        << " numbers, " << human_bytes(static_cast<double>(total.bytes)) << "\n";
  }
  out << "files\n";
  for (size_t rank = 0; rank < files.size(); ++rank) {
    const auto& fact = stored.shards[rank];
    out << "  " << files[rank].name << "  " << human_bytes(static_cast<double>(fact.bytes));
    if (files[rank].folder.empty()) {
      out << "  MISSING"
          << (fact.host.empty() ? "" : concat(": rank ", rank, " wrote it on host ", fact.host));
    } else {
      out << "  " << files[rank].folder.string();
      if (files[rank].bytes != fact.bytes) out << "  DAMAGED: it has " << files[rank].bytes << " bytes";
    }
    out << "\n";
  }
  out << "tensors\n";
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& tensor = manifest.tensors[i];
    out << "  " << tensor.name << "  " << tensor.dtype << ' ' << checkpoint::shape_text(tensor.shape) << "  "
        << human_bytes(static_cast<double>(bytes_of(tensor))) << "  "
        << regions_text(stored.regions[i], tensor.shape) << "\n";
  }
}

Json value_of(const std::string& text) { return text.empty() ? Json(nullptr) : Json::parse(text); }

Json files_json(const Inspection& inspection) {
  Json list = Json::array();
  for (size_t rank = 0; rank < inspection.files.size(); ++rank) {
    const auto& file = inspection.files[rank];
    const auto& fact = inspection.stored.shards[rank];
    Json one = {{"name", file.name},
                {"folder", file.folder.empty() ? Json(nullptr) : Json(file.folder.string())},
                {"bytes", file.bytes},
                {"expected_bytes", fact.bytes},
                {"xxh3", fact.checksum}};
    if (!fact.host.empty()) one["host"] = fact.host;
    list.push_back(std::move(one));
  }
  return list;
}

// [rank, begin, end] of intervals of the tensor, [rank, begin, end, box] of those of a box.
Json regions_json(const std::vector<checkpoint::StoredRegion>& regions, const std::vector<int64_t>& shape) {
  Json list = Json::array();
  for (const auto& [shard, region, copies] : regions) {
    std::vector<int64_t> ranks = {shard};
    ranks.insert(ranks.end(), copies.begin(), copies.end());
    for (const int64_t rank : ranks) {
      Json& one = list.emplace_back(Json{rank, region.begin, region.end});
      if (region.box == Box::whole(shape)) continue;
      Json box = Json::array();
      for (const DimRange& range : region.box.dims) box.push_back({range.begin, range.end});
      one.push_back(std::move(box));
    }
  }
  return list;
}

void print_json(const Inspection& inspection, std::ostream& out) {
  const auto& [stored, files] = inspection;
  const auto& [schema, world, progress, tensors] = stored.manifest;
  Json list = Json::array();
  int64_t parameters = 0, bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.starts_with(checkpoint::names::kParameter))
      parameters += checkpoint::count_of(tensors[i].shape);
    bytes += bytes_of(tensors[i]);
    list.push_back({{"name", tensors[i].name},
                    {"dtype", tensors[i].dtype},
                    {"shape", tensors[i].shape},
                    {"bytes", bytes_of(tensors[i])},
                    {"regions", regions_json(stored.regions[i], tensors[i].shape)}});
  }
  const Json all = {{"schema", schema},
                    {"step", progress.step},
                    {"world", world},
                    {"parameters", parameters},
                    {"bytes", bytes},
                    {"progress", value_of(progress.json)},
                    {"recipe", progress.recipe_toml},
                    {"plan", value_of(progress.plan_json)},
                    {"model", value_of(progress.model_json)},
                    {"files", files_json(inspection)},
                    {"tensors", std::move(list)}};
  out << json_text(all, 2) << "\n";
}

}  // namespace

void print_inspection(const Inspection& inspection, bool json, std::ostream& out) {
  json ? print_json(inspection, out) : print_text(inspection, out);
}

}  // namespace tessera::cli
