// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/import_galvatron.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/names.h"
#include "tessera/plan/sized_units.h"

namespace tessera::plan {
namespace {

constexpr int64_t kLargestBatch = int64_t{1} << 40;

/// Galvatron writes -1 for a value that it is to choose.
constexpr const char* kNotSet = "-1";

constexpr std::array kPlain = {
    "pp_deg",     "pp_division", "pipeline_type",  "default_dp_type", "chunks",
    "global_bsz", "world_size",  "nproc_per_node", "apply_strategy",  "global_train_batch_size"};
constexpr std::array kLayerwise = {"tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "checkpoint"};
constexpr std::array kGlobal = {"global_tp_deg", "global_tp_consec", "sdp", "fsdp", "global_checkpoint"};

/// A setting of which only the values 0 to `most` are available, of each entry where it is a list.
struct Unavailable {
  const char* key;
  int64_t most;
  const char* reason;
  const char* hint;
};

constexpr const char* kUlysses = "there is no sequence parallelism over attention heads (Ulysses)";
constexpr const char* kContext = "there is no context parallelism";
constexpr const char* kVocabulary = "stem and head are not cut over ranks";
constexpr const char* kExperts = "there are no models with experts";
constexpr const char* kEnds = "stem and head have default_dp_type";
constexpr const char* kUseTensor = "set it to 0: the degree is tensor parallelism then";
constexpr const char* kSetZero = "set it to 0";
constexpr const char* kSetOne = "set it to 1";
constexpr const char* kEditEnds =
    "set it to 0, and change \"level\" of \"stem\" and \"head\" to \"zero3\" in the plan that is written";

constexpr std::array kUnavailable = {
    Unavailable{"use_sp", 0, kUlysses, kUseTensor},
    Unavailable{"use_ulysses", 0, kUlysses, kUseTensor},
    Unavailable{"vsp", 0, kUlysses, kSetZero},
    Unavailable{"vocab_sp", 1, kUlysses, kSetOne},
    Unavailable{"cp", 1, kContext, kSetOne},
    Unavailable{"cp_sizes_enc", 1, kContext, kSetOne},
    Unavailable{"global_cp_deg", 1, kContext, kSetOne},
    Unavailable{"vcp", 1, kContext, kSetOne},
    Unavailable{"vocab_cp", 1, kContext, kSetOne},
    Unavailable{"vtp", 1, kVocabulary, kSetOne},
    Unavailable{"vocab_tp", 1, kVocabulary, kSetOne},
    Unavailable{"ep", 1, kExperts, kSetOne},
    Unavailable{"ep_sizes_enc", 1, kExperts, kSetOne},
    Unavailable{"global_ep_deg", 1, kExperts, kSetOne},
    Unavailable{"tp_of_ep_sizes_enc", 1, kExperts, kSetOne},
    Unavailable{"global_tp_of_ep_deg", 1, kExperts, kSetOne},
    Unavailable{"embed_sdp", 0, kEnds, kEditEnds},
    Unavailable{"vocab_sdp", 0, kEnds, kEditEnds},
};

/// What Galvatron says of one layer.
struct Layer {
  int64_t tensor = 1;
  bool consecutive = true, zero3 = false, recompute = false;
};

class Importer {
 public:
  Importer(const GalvatronSettings& settings, const arch::ModelConfig& config, const std::string& where)
      : settings_(settings), config_(config), where_(where), names_(arch::unit_names(config)) {}

  GalvatronImport run(int64_t ranks) {
    check_keys();
    for (const Unavailable& setting : kUnavailable) check_unavailable(setting);
    stages_ =
        integer(required("pp_deg", "the number of pipeline stages, 1 without a pipeline"), 1, kLargestWorld);
    world_ = world_of(ranks);
    if (stages_ > layers()) {
      fail(concat("pp_deg is ", stages_), concat("at most ", layers(), ", the blocks of the model"),
           "name another recipe, or fewer stages");
    }
    GalvatronImport out;
    out.batch = batch();
    out.plan = uniform_plan(config_, world_, default_level(), false, 1);
    set_layers(&out.plan);
    set_stages(&out);
    check(out.plan, where_);
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& expected,
                         const std::string& hint = "") const {
    user_error({.where = "plan.import_galvatron",
                .problem = concat(problem, where_.empty() ? "" : concat(" (", where_, ")")),
                .expected = expected,
                .hint = hint});
  }

  /// Blocks of the model.
  int64_t layers() const { return static_cast<int64_t>(names_.size()) - 2; }

  bool given(const char* key) const {
    const auto found = settings_.find(key);
    return found != settings_.end() && found->second != kNotSet;
  }

  const char* required(const char* key, const std::string& meaning) const {
    if (!given(key)) fail(concat(key, " is missing"), meaning);
    return key;
  }

  /// A value as it stood in the source, cut to a readable length.
  std::string shown(const char* key) const {
    const std::string& text = settings_.at(key);
    return concat("'", escape(text.substr(0, 40)), text.size() > 40 ? "..." : "", "'");
  }

  void check_keys() const {
    std::vector<std::string> known(kPlain.begin(), kPlain.end());
    known.insert(known.end(), kLayerwise.begin(), kLayerwise.end());
    known.insert(known.end(), kGlobal.begin(), kGlobal.end());
    const std::vector<std::string> unavailable = unavailable_galvatron_settings();
    known.insert(known.end(), unavailable.begin(), unavailable.end());
    for (const auto& [key, value] : settings_) {
      if (std::ranges::find(known, key) != known.end()) continue;
      const std::string near = nearest(key, known);
      fail(concat("'", escape(key.substr(0, 40)), "' is no known setting of Galvatron"), "",
           near.empty()
               ? "remove it if it has nothing to do with the layout; docs/from_galvatron.md lists all"
               : concat("did you mean ", near, "?"));
    }
  }

  void check_unavailable(const Unavailable& setting) const {
    if (!given(setting.key)) return;
    const auto values = parse_galvatron_list(settings_.at(setting.key));
    const std::string allowed = setting.most == 0 ? "0" : "0 or 1";
    const auto is_available = [&](int64_t value) { return value >= 0 && value <= setting.most; };
    if (values && std::ranges::all_of(*values, is_available)) return;
    std::string found = concat(setting.key, " is ", shown(setting.key));
    if (values && values->size() > 1) {
      const auto at = std::ranges::find_if_not(*values, is_available);
      found = concat("entry ", at - values->begin(), " of ", setting.key, " is ", *at);
    }
    fail(found, concat(allowed, ", since ", setting.reason), setting.hint);
  }

  int64_t integer(const char* key, int64_t low, int64_t high) const {
    const auto value = parse_number<int64_t>(settings_.at(key));
    if (!value || *value < low || *value > high) {
      fail(concat(key, " is ", shown(key)),
           high - low == 1 ? concat(low, " or ", high) : concat("an integer from ", low, " to ", high));
    }
    return *value;
  }

  bool flag(const char* key) const { return given(key) && integer(key, 0, 1) == 1; }

  std::vector<int64_t> list(const char* key, int64_t low, int64_t high) const {
    const auto values = parse_galvatron_list(settings_.at(key));
    if (!values) {
      fail(concat(key, " is ", shown(key)), "a list of integers, such as \"1,1,2,2\" or [1]*2+[2]*2");
    }
    for (size_t i = 0; i < values->size(); ++i) {
      const int64_t value = (*values)[i];
      if (value >= low && value <= high) continue;
      fail(concat("entry ", i, " of ", key, " is ", value),
           high - low == 1 ? concat(low, " or ", high) : concat("an integer from ", low, " to ", high));
    }
    return *values;
  }

  /// One value for each layer.
  std::vector<int64_t> layer_list(const char* key, int64_t otherwise, int64_t low, int64_t high) const {
    if (!given(key)) return std::vector<int64_t>(static_cast<size_t>(layers()), otherwise);
    const std::vector<int64_t> values = list(key, low, high);
    const auto size = static_cast<int64_t>(values.size());
    if (size != layers()) {
      fail(concat(key, " has ", size, size == 1 ? " entry" : " entries"),
           concat(layers(), ", one for each block of the model"),
           "import it with the recipe of a model of that depth (model.depth)");
    }
    return values;
  }

  int64_t world_of(int64_t ranks) const {
    const int64_t per_stage = given("nproc_per_node") ? integer("nproc_per_node", 1, kLargestWorld) : 0;
    const int64_t of_file = given("world_size") ? integer("world_size", 1, kLargestWorld) : 0;
    int64_t world = ranks > 0 ? ranks : of_file;
    if (world == 0) world = per_stage * stages_;
    if (world == 0) fail("the number of ranks is not given", "--ranks, world_size or nproc_per_node");
    if (of_file > 0 && of_file != world)
      fail(concat("world_size is ", of_file), concat(world, ", as --ranks"), "remove --ranks");
    if (world % stages_ != 0) {
      fail(concat("pp_deg is ", stages_),
           concat("a divisor of the ", world, world == 1 ? " rank" : " ranks"));
    }
    if (per_stage > 0 && per_stage != world / stages_) {
      fail(concat("nproc_per_node is ", per_stage, " with pp_deg ", stages_, " and ", world, " ranks"),
           concat(world / stages_, ", the ranks of a pipeline stage"),
           "remove it where it is the number of GPUs of a node");
    }
    return world;
  }

  int64_t batch() const {
    const bool both = given("global_bsz") && given("global_train_batch_size");
    if (both) fail("global_bsz and global_train_batch_size are both given", "one of them");
    for (const char* key : {"global_bsz", "global_train_batch_size"}) {
      if (given(key)) return integer(key, 1, kLargestBatch);
    }
    return 0;
  }

  Level default_level() const {
    if (!given("default_dp_type")) return Level::kReplicate;
    const std::string& name = settings_.at("default_dp_type");
    if (name == "ddp") return Level::kReplicate;
    if (name == "zero2") return Level::kZero2;
    if (name == "zero3") return Level::kZero3;
    fail(concat("default_dp_type is ", shown("default_dp_type")), "ddp, zero2 or zero3");
  }

  Schedule schedule() const {
    if (!given("pipeline_type")) return Schedule::kGpipe;  // Galvatron's default
    const std::string& name = settings_.at("pipeline_type");
    if (name == "gpipe") return Schedule::kGpipe;
    if (name == "pipedream_flush") return Schedule::k1F1B;
    fail(concat("pipeline_type is ", shown("pipeline_type")), "gpipe or pipedream_flush");
  }

  /// Null where none of them is given.
  const char* first_given(const auto& keys) const {
    const auto found = std::ranges::find_if(keys, [&](const char* key) { return given(key); });
    return found == keys.end() ? nullptr : *found;
  }

  std::vector<Layer> layers_of_lists() const {
    required("tp_sizes_enc", "a list with the degree of tensor parallelism of each layer");
    const auto tensor = layer_list("tp_sizes_enc", 1, 1, kLargestWorld);
    const auto consecutive = layer_list("tp_consecutive_flags", 1, 0, 1);
    const auto zero3 = layer_list("dp_types_enc", 0, 0, 1);
    const auto recompute = layer_list("checkpoint", 0, 0, 1);
    std::vector<Layer> out;
    for (size_t i = 0; i < tensor.size(); ++i)
      out.push_back({tensor[i], consecutive[i] == 1, zero3[i] == 1, recompute[i] == 1});
    return out;
  }

  std::vector<Layer> layers_of_flags() const {
    if (given("sdp") && given("fsdp")) fail("sdp and fsdp are both given", "one of them");
    if (flag("apply_strategy"))
      fail("apply_strategy is 1 without layerwise lists",
           "tp_sizes_enc and the other lists, or apply_strategy 0");
    required("global_tp_deg", "the degree of tensor parallelism of all layers, or the list tp_sizes_enc");
    Layer layer;
    layer.tensor = integer("global_tp_deg", 1, kLargestWorld);
    layer.consecutive = !given("global_tp_consec") || flag("global_tp_consec");
    layer.zero3 = flag("sdp") || flag("fsdp");
    layer.recompute = flag("global_checkpoint");
    return std::vector<Layer>(static_cast<size_t>(layers()), layer);
  }

  void set_layers(Plan* plan) const {
    const char* layerwise = first_given(kLayerwise);
    const char* global = first_given(kGlobal);
    if (layerwise != nullptr && global != nullptr) {
      fail(concat(layerwise, " and ", global, " are both given"),
           "either lists with a value for each layer, or values for all layers");
    }
    const std::vector<Layer> found = layerwise != nullptr ? layers_of_lists() : layers_of_flags();
    const std::set<std::string> cuttable = cuttable_units(config_);
    const int64_t ranks = world_ / stages_;
    for (size_t i = 0; i < found.size(); ++i) {
      const Layer& layer = found[i];
      UnitPlan& unit = plan->units[i + 1];
      const std::string key =
          layerwise != nullptr ? concat("entry ", i, " of tp_sizes_enc") : std::string("global_tp_deg");
      if (ranks % layer.tensor != 0) {
        fail(concat(key, " is ", layer.tensor),
             concat("a divisor of the ", ranks, ranks == 1 ? " rank" : " ranks", " of a pipeline stage"));
      }
      if (layer.tensor > 1 && !cuttable.contains(unit.name)) {
        fail(concat(key, " is ", layer.tensor),
             concat("1: ", unit.name, " has no layers that tensor parallelism cuts"));
      }
      if (layer.zero3) unit.level = Level::kZero3;
      unit.recompute = layer.recompute ? Recompute::kAll : Recompute::kNone;
      if (layer.tensor == 1) continue;
      unit.layout = {layer.tensor, layer.consecutive};
      unit.keep_gathered = true;  // as parallel.keep_gathered
    }
  }

  /// Layers of each stage: even, the rest on the last stage, as in Galvatron.
  std::vector<int64_t> division() const {
    if (!given("pp_division")) {
      std::vector<int64_t> even(static_cast<size_t>(stages_), layers() / stages_);
      even.back() += layers() % stages_;
      return even;
    }
    const std::vector<int64_t> given_layers = list("pp_division", 1, kLargestUnit);
    if (static_cast<int64_t>(given_layers.size()) != stages_) {
      fail(concat("pp_division has ", given_layers.size(), given_layers.size() == 1 ? " entry" : " entries"),
           concat(stages_, ", one for each of the pp_deg stages"));
    }
    const int64_t sum = std::accumulate(given_layers.begin(), given_layers.end(), int64_t{0});
    if (sum != layers()) {
      fail(concat("pp_division is ", shown("pp_division"), ", ", sum, " layers in all"),
           concat(layers(), ", the blocks of the model"));
    }
    return given_layers;
  }

  /// Where it is not given: a quarter of a rank's images, as Galvatron does; without a batch as many as
  /// stages.
  int64_t micro_batches(int64_t batch) const {
    if (given("chunks")) return integer("chunks", 1, kLargestMicroBatches);
    if (batch == 0) return stages_;
    const int64_t per_rank = batch / (world_ / stages_);
    return std::clamp<int64_t>((per_rank + 3) / 4, 1, kLargestMicroBatches);
  }

  void set_stages(GalvatronImport* out) const {
    const std::vector<int64_t> blocks = division();
    const Schedule order = schedule();
    if (stages_ == 1) {
      if (given("chunks")) out->accumulation = integer("chunks", 1, kLargestMicroBatches);
      return;
    }
    set_pipeline(&out->plan, config_, {stages_, order, 1, micro_batches(out->batch), blocks});
  }

  const GalvatronSettings& settings_;
  const arch::ModelConfig& config_;
  const std::string& where_;
  const std::vector<std::string> names_;
  int64_t stages_ = 1, world_ = 1;
};

}  // namespace

GalvatronImport import_galvatron(const GalvatronSettings& settings, const arch::ModelConfig& config,
                                 int64_t ranks, const std::string& where) {
  return Importer(settings, config, where).run(ranks);
}

std::vector<std::string> unavailable_galvatron_settings() {
  std::vector<std::string> names;
  for (const Unavailable& setting : kUnavailable) names.emplace_back(setting.key);
  return names;
}

}  // namespace tessera::plan
