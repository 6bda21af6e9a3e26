// SPDX-License-Identifier: Apache-2.0
// How a model is laid out over ranks. Numbers only: no tensors.
//
// Ranks are numbered with the pipeline stage slowest: stage s is ranks [s * R, (s + 1) * R), R =
// stage_ranks(). In every unit the R ranks of a stage form tensor-parallel groups and, across them,
// data-parallel groups, which split or replicate the state (spans.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/arch/model.h"

namespace tessera::plan {

/// What of a unit's state is split over the ranks (ZeRO, arXiv 1910.02054).
enum class Level {
  kReplicate,  // nothing (data parallel)
  kZero1,      // optimizer state and master weights
  kZero2,      // + gradients; parameters stay gathered between forward and backward
  kZero3,      // + parameters: gathered for forward, again for backward
};

/// What of a rank's share lies in the host's memory instead of where units compute. Alike in numbers; it
/// spares memory of a GPU. Where the CPU computes both are the same chips, and it costs copies for nothing.
enum class Offload {
  kNone,
  kOptimizer,  // master weights, summed gradients, optimizer state: the optimizer steps on the host
  kAll,        // + the share in the compute dtype, which every gather then fetches from the host
};

/// Activations that backward computes again instead of keeping them (activation checkpointing).
enum class Recompute {
  kNone,
  kAll,       // all but the unit's input
  kKeepSums,  // as kAll, but the results of the unit's reduce-scatters (tensor parallelism) are kept
};

/// The order in which a pipeline stage runs forwards and backwards of micro-batches.
enum class Schedule {
  kGpipe,        // all forwards, then all backwards (arXiv 1811.06965)
  k1F1B,         // one forward, one backward in turn (arXiv 2006.09503)
  kInterleaved,  // 1F1B over several virtual stages per rank (arXiv 2104.04473)
};

/// How the layers of a unit are cut over ranks of a stage (tensor parallelism).
struct Layout {
  int64_t tensor = 1;    // ranks that hold one copy of the layers together
  bool adjacent = true;  // these are neighbours; false: stage_ranks() / tensor apart
  bool operator==(const Layout&) const = default;
};

/// One unit of communication: what is gathered and reduced at once.
struct UnitPlan {
  std::string name;  // "stem", "blocks.3", "head"
  Level level = Level::kZero3;
  Recompute recompute = Recompute::kNone;
  Offload offload = Offload::kNone;
  /// The state is split over groups of this many data-parallel ranks and replicated over these groups (hybrid
  /// sharding, HSDP); 0: split over all data-parallel ranks.
  int64_t shard = 0;
  Layout layout = {};
  bool keep_gathered = false;  // keep the gathered inputs of tensor-parallel layers for backward
  bool recomputes() const { return recompute != Recompute::kNone; }
  bool is_cut() const { return layout.tensor > 1; }
  bool operator==(const UnitPlan&) const = default;
};

/// A layout. Immutable once made; saved as plan.json with every run and checkpoint.
struct Plan {
  int64_t world = 1;
  int64_t prefetch = 1;        // units gathered ahead of the one that computes
  int64_t stages = 1;          // pipeline stages
  int64_t virtual_stages = 1;  // per pipeline stage; above 1 with Schedule::kInterleaved
  int64_t micro_batches = 0;   // of an optimizer step; 0, without pipeline: as train.accumulation says
  Schedule schedule = Schedule::k1F1B;
  int64_t ahead = 0;  // ScheduleShape::ahead (schedule.h): 0, or with Schedule::k1F1B 1
  /// Index of the first unit of each virtual stage, in the model's order: stages * virtual_stages entries,
  /// rising from 0. Virtual stage v is of pipeline stage v % stages.
  std::vector<int64_t> first_unit = {0};
  std::vector<UnitPlan> units;
  int64_t stage_ranks() const { return world / stages; }
  bool operator==(const Plan&) const = default;
};

/// The plan of a unit. Requires: there is one of this name.
const UnitPlan& unit_of(const Plan& plan, const std::string& name);

/// Returns a plan without pipeline or tensor parallelism: the same level and offload for every unit of the
/// model (stem, blocks.*, head); recompute applies to all but stem and head. Errors: UserError when world or
/// prefetch is out of range.
Plan uniform_plan(const arch::ModelConfig& config, int64_t world, Level level, bool recompute,
                  int64_t prefetch, Offload offload = Offload::kNone);

/// How a model is cut into stages of a pipeline.
struct PipelineSettings {
  int64_t stages = 1;
  Schedule schedule = Schedule::k1F1B;
  int64_t virtual_stages = 1;   // of each rank
  int64_t micro_batches = 0;    // of a step
  std::vector<int64_t> blocks;  // of each virtual stage, stem and head besides; empty: cut by cost
  int64_t ahead = 0;            // Plan::ahead
  bool operator==(const PipelineSettings&) const = default;
};

/// Cuts the units into stages. One stage changes nothing. Requires: micro_batches >= 1 with more stages.
/// Errors: UserError that names the key of [parallel] where the stages do not divide the ranks or are more
/// than the units, the schedule does not fit the virtual stages or the micro-batches, or the blocks do not
/// add up to the model's.
void set_pipeline(Plan* plan, const arch::ModelConfig& config, const PipelineSettings& settings);

/// Where `parts` stages of about the same cost begin: indices of units. A unit costs what a training step
/// computes of it; the largest part costs as little as it can, and among those cuts the first parts hold
/// more. Requires: 1 <= parts <= units.
std::vector<int64_t> cut_by_cost(const arch::ModelConfig& config, int64_t parts);

/// Cuts the units that can be cut (a transformer's blocks) over the ranks of `layout`; stem and head stay
/// whole. layout.tensor 1 changes nothing. Errors: UserError that names parallel.tensor where it does not
/// divide the ranks of a stage, or no unit of the model can be cut.
void set_tensor(Plan* plan, const arch::ModelConfig& config, const Layout& layout, bool keep_gathered);

/// A replicated plan without a pipeline, whose blocks are recomputed as `recompute` says and cut over
/// `tensor` neighbours. Errors: as uniform_plan() and set_tensor().
Plan plan_of_blocks(const arch::ModelConfig& config, int64_t world, int64_t tensor, Recompute recompute,
                    bool keep_gathered);

/// Does the model have units that set_tensor() cuts?
bool can_cut(const arch::ModelConfig& config);

/// Sets UnitPlan::shard of all units but replicated ones. Errors: UserError that names shard.ranks when
/// `ranks` does not divide the ranks of each unit's data-parallel groups.
void set_shard_ranks(Plan* plan, int64_t ranks);

/// What a unit that a rule names has where the rule does not say it.
struct RuleDefaults {
  int64_t shard_ranks = 0;                     // UnitPlan::shard of a unit that is not replicated
  bool adjacent = true, keep_gathered = true;  // of a unit that is cut
};

/// Changes single units by rules UNITS=WORD+WORD...: "blocks.0-19=replicate, head=zero2,
/// blocks.20-31=zero3+recompute+ranks8", or for a ResNet "layer4.0-2=replicate". Words, each at most once, in
/// any order:
///   a level                          without: the plan's
///   recompute, keep_sums             without: the unit is not recomputed
///   ranksN                           UnitPlan::shard; without: defaults.shard_ranks (0 if replicated)
///   tensorN                          ranks that hold the unit together; without: the plan's
///   adjacent, strided                neighbours, or ranks apart; without: defaults.adjacent
///   keep_gathered, regather          UnitPlan::keep_gathered; without: defaults.keep_gathered
/// "The plan's" is what `plan` says before all rules. Of two rules for one unit the later wins; where one
/// of them gives tensorN that is an error. "" changes nothing. Errors: UserError that names the rule and what
/// is wrong with it.
void apply_unit_rules(Plan* plan, const arch::ModelConfig& config, const std::string& rules,
                      const RuleDefaults& defaults = {});

/// The rules without what depends on the number of ranks: without ranksN, and with `whole_layers` without
/// tensor parallelism (keep_sums becomes recompute).
std::string rules_for_any_ranks(const std::string& rules, bool whole_layers);

/// Reads a plan file for a run of `config` on `world` ranks. Errors: UserError that names the file, where it
/// cannot be read, is no plan, or is one for another number of ranks or another model's units.
Plan read_plan(const std::filesystem::path& path, const arch::ModelConfig& config, int64_t world);

/// Errors: UserError that names the key of plan.json, its value, `where` (a path) and what is allowed, when
/// values of the plan contradict each other.
void check(const Plan& plan, const std::string& where);

/// plan.json of version 2.
std::string to_json(const Plan& plan);
/// Reads plan.json of version 2, or of version 1, which has no pipeline, tensor parallelism or hybrid
/// sharding. Errors: UserError with `where` (a path) when the text is no plan, has an unknown key, a value of
/// the wrong type or range, or values that contradict each other.
Plan plan_from_json(const std::string& text, const std::string& where);

/// The plan of what tensor parallelism does not cut of a unit, NAME/rows: norms, LayerScale, and biases that
/// are added to sums. Such parameters see a rank's own samples (or heads), so all ranks of a stage sum their
/// gradients, whatever the unit's layout. They are few: replicated, or the states alone split (zero1), over
/// all ranks of the stage. Requires: unit.is_cut().
UnitPlan rows_plan(const UnitPlan& unit);

std::string to_string(Level level);           // "replicate", "zero1", "zero2", "zero3"
Level level_from_string(const std::string&);  // UserError that names the nearest
std::string to_string(Offload offload);       // "none", "optimizer", "all"
std::string to_string(Recompute recompute);   // "none", "all", "keep_sums"
std::string to_string(Schedule schedule);     // "gpipe", "1f1b", "interleaved"

}  // namespace tessera::plan
