// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/galvatron_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/json_fields.h"

namespace tessera::planner::galvatron {
namespace {

using plan::JsonFields;
using Json = JsonFields::Json;

constexpr int64_t kMostOfKey = 1 << 20;       // ranks, images, tokens and MB in keys
constexpr double kLeast = 1e-9, kMost = 1e9;  // ms, and MB/ms
constexpr double kMostSlowdown = 1e3;
constexpr double kParameterTolerance = 0.05;  // memory is measured: 2.6 % above the values in release 1
constexpr std::array kDtypes = {"bf16", "fp16", "fp32"};

using Numbers = std::optional<std::vector<int64_t>>;

/// The numbers in a key that `pattern` has as '#': {8, 1} of "size_8_consec_1" by "size_#_consec_#".
Numbers numbers_in(std::string_view key, std::string_view pattern) {
  std::vector<int64_t> numbers;
  for (const char c : pattern) {
    if (c == '#') {
      const size_t digits = std::min(key.find_first_not_of("0123456789"), key.size());
      const bool has_leading_zero = digits > 1 && key.front() == '0';
      const auto number = parse_number<int64_t>(has_leading_zero ? "" : key.substr(0, digits));
      if (!number || *number > kMostOfKey) return std::nullopt;
      numbers.push_back(*number);
      key.remove_prefix(digits);
    } else {
      if (key.empty() || key.front() != c) return std::nullopt;
      key.remove_prefix(1);
    }
  }
  if (!key.empty()) return std::nullopt;
  return numbers;
}

bool fits_any(std::string_view key, const std::vector<std::string_view>& patterns) {
  return std::ranges::any_of(patterns,
                             [&](std::string_view pattern) { return numbers_in(key, pattern).has_value(); });
}

std::string in_quotes(std::string_view text) { return concat('"', escape(text), '"'); }

/// One file and its checks.
struct Reader {
  explicit Reader(const GalvatronFile& file) : fields(kImport, file.name), json(fields.parse(file.text)) {
    if (!json.is_object()) fields.fail(concat("the file is ", JsonFields::shown(json)), "an object");
  }

  double number(const std::string& key, double low, double high) const {
    const Json& value = json[key];
    if (value.is_number() && value.get<double>() >= low && value.get<double>() <= high)
      return value.get<double>();
    fields.fail(concat(in_quotes(key), " is ", JsonFields::shown(value)),
                concat("a number between ", low, " and ", high));
  }
  /// A number of a key's own text.
  void at_least(const std::string& key, int64_t number, int64_t low) const {
    if (number < low)
      fields.fail(concat(in_quotes(key), " has the number ", number), concat("at least ", low));
  }
  [[noreturn]] void unknown(const std::string& key, const std::string& known, const std::string& hint) const {
    fields.fail(concat(in_quotes(key), " is no known key"), known, hint);
  }

  JsonFields fields;
  Json json;
};

[[noreturn]] void several_types(const Reader& reader, const std::string& key) {
  reader.fields.fail(concat(in_quotes(key), " is of a second type of layers"),
                     "layers of one type, since all blocks of the model are alike",
                     "import the files of a model of the recipe's kind");
}

/// "allreduce_bandwidth_2nodes_8gpus_per_node.json" is of 2 hosts of 8 ranks.
std::optional<Cluster> cluster_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const size_t end = name.find("gpus_per_node");
  if (end == std::string::npos) return std::nullopt;
  const size_t before_nodes = name.rfind('_', name.rfind('_', end) - 1);
  if (before_nodes == std::string::npos) return std::nullopt;
  const Numbers numbers = numbers_in(name.substr(before_nodes + 1, end - before_nodes - 1), "#nodes_#");
  if (!numbers || numbers->at(0) < 1 || numbers->at(1) < 1) return std::nullopt;
  return Cluster{numbers->at(0), numbers->at(1)};
}

class HardwareReader {
 public:
  void add(const GalvatronFile& file) {
    const Reader reader(file);
    take_cluster(reader, cluster_of(file.name));
    for (const auto& [key, value] : reader.json.items()) {
      const auto [first, is_new] = files_.emplace(key, file.name);
      if (!is_new)
        reader.fields.fail(concat(in_quotes(key), " is in ", escape(first->second), " as well"),
                           "each key once");
      take(reader, key);
    }
  }

  Hardware found;

 private:
  void take_cluster(const Reader& reader, const std::optional<Cluster>& cluster) {
    if (!cluster) return;
    if (found.cluster && *found.cluster != *cluster) {
      reader.fields.fail(
          concat("the file's name says ", cluster->hosts, " nodes of ", cluster->ranks_of_host, " GPUs"),
          concat(found.cluster->hosts, " nodes of ", found.cluster->ranks_of_host,
                 " GPUs, as the files before"));
    }
    found.cluster = cluster;
  }

  void take(const Reader& reader, const std::string& key) {
    if (const Numbers group = numbers_in(key, "allreduce_size_#_consec_#"); group && group->at(1) <= 1) {
      reader.at_least(key, group->at(0), 2);
      found.all_reduce[{group->at(0), group->at(1) == 1}] = reader.number(key, kLeast, kMost);
    } else if (const Numbers message = numbers_in(key, "allreduce_size_#_#MB_time")) {
      reader.at_least(key, message->at(0), 2);
      reader.at_least(key, message->at(1), 1);
      found.all_reduce_ms[message->at(0)][message->at(1)] = reader.number(key, kLeast, kMost);
    } else if (const Numbers stages = numbers_in(key, "pp_size_#")) {
      reader.at_least(key, stages->at(0), 2);
      found.send[stages->at(0)] = reader.number(key, kLeast, kMost);
    } else if (key == "overlap_coe") {
      found.overlap = reader.number(key, 1, kMostSlowdown);
    } else if (numbers_in(key, "all2all_size_#_#MB_time")) {
      reader.number(key, kLeast, kMost);
      ++found.all_to_all;
    } else {
      const bool is_first = fits_any(key, {"#_#_#", "pp_deg_#"});
      reader.unknown(
          key, "allreduce_size_S_consec_C, pp_size_P, overlap_coe or allreduce_size_S_MMB_time",
          is_first ? "release 1 wrote ms/MB; from release 2 on it is MB/ms: profile with a newer release"
                   : "");
    }
  }

  std::map<std::string, std::string> files_;  // by key
};

class ComputationReader {
 public:
  ComputationReader(const GalvatronFile& file, int64_t tokens) : reader_(file), tokens_(tokens) {
    for (const auto& [key, value] : reader_.json.items()) take(key);
    check();
  }

  Computation found;

 private:
  void take(const std::string& key) {
    if (const Numbers layer = either(key, "layertype_#_bsz#")) {
      if (layer->at(0) != 0) several_types(reader_, key);
      add(found.layer, key, {layer->begin() + 1, layer->end()}, kLeast);
    } else if (const Numbers other = either(key, "layertype_other_bsz#")) {
      add(found.other, key, *other, 0);
    } else if (const Numbers typed = either(key, "layertype_other_#_bsz#")) {
      if (typed->at(0) != 0) several_types(reader_, key);
      add(found.other, key, {typed->begin() + 1, typed->end()}, 0);
    } else if (either(key, "layernum#_bsz#") || either(key, "layernum[#]_bsz#")) {
      reader_.number(key, kLeast, kMost);
      ++found.raw;
    } else {
      reader_.unknown(key, "layertype_0_bszB_seqS, layertype_other_bszB_seqS or layernumL_bszB_seqS", "");
    }
  }

  /// With a sequence length behind the pattern, or without.
  static Numbers either(const std::string& key, const std::string& pattern) {
    const Numbers numbers = numbers_in(key, pattern + "_seq#");
    return numbers ? numbers : numbers_in(key, pattern);
  }

  /// `numbers`: batch, and the sequence length if the key has one.
  void add(std::map<int64_t, double>& times, const std::string& key, const std::vector<int64_t>& numbers,
           double low) {
    reader_.at_least(key, numbers[0], 1);
    const double ms = reader_.number(key, low, kMost);
    if (numbers.size() == 1) found.names_tokens = false;
    if (numbers.size() == 2 && numbers[1] != tokens_) {
      lengths_.push_back(numbers[1]);
      ++found.other_lengths;
    } else if (!times.emplace(numbers[0], ms).second) {
      reader_.fields.fail(concat(in_quotes(key), " has a second time of batch ", numbers[0]), "one");
    }
  }

  void check() const {
    if (found.layer.empty() && !lengths_.empty()) {
      reader_.fields.fail(concat("the layers have sequence length ", lengths_.front()),
                          concat(tokens_, ", the tokens of the recipe's model"),
                          "import the files of a model of the recipe's kind");
    }
    if (found.layer.empty())
      reader_.fields.fail(concat("the file has no layertype_0_bszB_seq", tokens_), "the time of a layer");
    for (const auto& [batch, ms] : found.layer) {
      if (!found.other.contains(batch)) missing("layertype_other", batch);
    }
    for (const auto& [batch, ms] : found.other) {
      if (!found.layer.contains(batch)) missing("layertype_0", batch);
    }
  }

  [[noreturn]] void missing(const char* what, int64_t batch) const {
    reader_.fields.fail(concat("the file has no ", what, "_bsz", batch, "_seq", tokens_),
                        "times of layertype_0 and layertype_other for each batch");
  }

  Reader reader_;
  int64_t tokens_;
  std::vector<int64_t> lengths_;  // sequence lengths that are not the model's
};

/// "computation_profiling_bf16_vit-huge_all.json" is of bf16.
std::string dtype_of(const std::string& path) {
  std::string_view rest = std::string_view(path).substr(path.rfind('/') + 1);
  while (!rest.empty()) {
    const std::string_view word = take_until(rest, "_.");
    if (std::ranges::find(kDtypes, word) != kDtypes.end()) return std::string(word);
  }
  return "";
}

void check_parameter_size(const Reader& reader, const Json& layer, int64_t parameters) {
  const char* key = "parameter_size";
  if (!layer.is_object() || !layer.contains(key))
    reader.fields.fail(concat("\"layertype_0\" has ", JsonFields::shown(layer)),
                       "an object with \"parameter_size\"");
  const double found = reader.fields.number_above(layer, key, 0);
  const double expected = 4 * static_cast<double>(parameters) / kBytesOfMb;
  if (std::abs(found / expected - 1) <= kParameterTolerance) return;
  reader.fields.fail(
      concat("\"parameter_size\" of layertype_0 is ", JsonFields::shown(layer[key]), " MB"),
      concat("about ", std::round(expected * 100) / 100, " MB, a block of the recipe's model in fp32"),
      "import the files of a model of the recipe's size");
}

}  // namespace

int64_t tokens_of(const arch::ModelConfig& model, const char* where) {
  return std::visit(
      [&](const auto& config) -> int64_t {
        if constexpr (requires { config.tokens(); }) {
          return config.tokens();
        } else {
          user_error({.where = where,
                      .problem = concat("the model is a ", model.family(), ", whose blocks differ"),
                      .expected = "a vit or a resmlp, since Galvatron has one time for all blocks"});
        }
      },
      model.of);
}

std::string kind_of(const Groups& groups, const Cluster& cluster) {
  const int64_t of_host = cluster.ranks_of_host;
  if (groups.consecutive) return groups.size > of_host || of_host % groups.size != 0 ? "hosts" : "adjacent";
  return cluster.hosts > 1 ? "hosts" : "strided";
}

std::string kind_of_sends(int64_t stages, const Cluster& cluster) {
  if (cluster.hosts > 1) return "hosts";  // measured in the middle of the pipeline
  return stages == cluster.ranks() ? "adjacent" : "strided";
}

std::vector<Groups> searched_groups(const Cluster& cluster) {
  std::vector<Groups> groups;
  for (int64_t size = cluster.ranks(); size >= 2; size = size % 2 == 0 ? size / 2 : 0) {
    groups.push_back({size, true});
    if (size < cluster.ranks()) groups.push_back({size, false});
  }
  return groups;
}

std::string all_reduce_key(const Groups& groups) {
  return concat("allreduce_size_", groups.size, "_consec_", groups.consecutive ? 1 : 0);
}

Hardware read_hardware(const std::vector<GalvatronFile>& files) {
  HardwareReader reader;
  for (const GalvatronFile& file : files) reader.add(file);
  return reader.found;
}

Computation read_computation(const GalvatronFile& file, int64_t tokens) {
  Computation found = ComputationReader(file, tokens).found;
  found.compute = dtype_of(file.name);
  return found;
}

void check_memory(const GalvatronFile& file, int64_t parameters) {
  const Reader reader(file);
  bool has_layer = false;
  for (const auto& [key, value] : reader.json.items()) {
    std::string name = key;
    if (name.ends_with("_sp")) name.resize(name.size() - 3);
    if (const Numbers type = numbers_in(name, "layertype_#")) {
      if (type->at(0) != 0) several_types(reader, key);
      has_layer = true;
      if (!value.is_object() || value.empty() || value.contains("parameter_size")) {
        check_parameter_size(reader, value, parameters);
        continue;
      }
      for (const auto& [tokens, layer] : value.items()) check_parameter_size(reader, layer, parameters);
    } else if (!name.starts_with("other_memory_pp_") && name.find_first_of("0123456789") != 0) {
      reader.unknown(
          key, "layertype_0, other_memory_pp_off, other_memory_pp_on_first or other_memory_pp_on_last", "");
    }
  }
  if (!has_layer) reader.fields.fail("the file has no layertype_0", "the memory of a layer");
}

}  // namespace tessera::planner::galvatron
