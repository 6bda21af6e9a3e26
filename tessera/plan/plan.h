// SPDX-License-Identifier: Apache-2.0
// How a model is laid out over ranks, and what that costs. Numbers only: no tensors.
#pragma once

#include <cstdint>
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

/// One unit of communication: what is gathered and reduced at once.
struct UnitPlan {
  std::string name;  // "stem", "blocks.3", "head"
  Level level = Level::kZero3;
  bool recompute = false;  // drop activations in forward, compute them again in backward
  Offload offload = Offload::kNone;
  bool operator==(const UnitPlan&) const = default;
};

/// A layout. Immutable once made; saved as plan.json with every run and checkpoint.
struct Plan {
  int64_t world = 1;
  int64_t prefetch = 1;  // units gathered ahead of the one that computes
  std::vector<UnitPlan> units;
  bool operator==(const Plan&) const = default;
};

/// The same level and offload for every unit of the model (stem, blocks.*, head); recompute applies to all
/// but stem and head. Errors: UserError when world or prefetch is out of range.
Plan uniform_plan(const arch::ModelConfig& config, int64_t world, Level level, bool recompute,
                  int64_t prefetch, Offload offload = Offload::kNone);

/// Gives units a level of their own: "blocks.0-19=replicate, head=zero2, blocks.20-31=zero3+recompute", or
/// of a ResNet "layer4.0-2=replicate". A unit named has recompute where its rule says so; of two rules for
/// one unit the later wins; "" changes nothing. Errors: UserError that names the rule and what is wrong with
/// it.
void assign_levels(Plan* plan, const std::string& rules);

std::string to_json(const Plan& plan);
/// No other keys are known than {"format": "tessera.plan", "version": 1, "world", "prefetch", "units":
/// [{"name", "level", "recompute", "offload"}]}, and all are required but "offload" (then "none"). Errors:
/// UserError with `where` (a path) when the text is no plan.
Plan plan_from_json(const std::string& text, const std::string& where);

std::string to_string(Level level);           // "replicate", "zero1", "zero2", "zero3"
Level level_from_string(const std::string&);  // UserError that names the nearest
std::string to_string(Offload offload);       // "none", "optimizer", "all"

/// How gradients travel: numbers of all ranks' slices in one piece, and pieces under way at once. The same on
/// every rank.
inline constexpr int64_t kPieceNumbers = int64_t{1} << 25;
inline constexpr int64_t kPiecesUnderWay = 2;
/// What any training adds to the idle program: LibTorch's code touched for the first time, stacks of threads.
inline constexpr double kProgramGrowth = 16.0 * 1024 * 1024;

/// Bytes per rank while training, above the idle program. See docs/memory.md for the derivation.
struct Memory {
  double states = 0;       // master weights, what the optimizer keeps (fp32), as the plan says
  double gradients = 0;    // fp32: what they need at once beyond activations that backward has freed by then
  double gathered = 0;     // compute-dtype parameters of the units gathered at once, and their gradients
  double activations = 0;  // of one micro-batch
  double program = 0;      // kProgramGrowth
  double total() const { return states + gradients + gathered + activations + program; }
};

struct Precision {
  int64_t compute_bytes = 4;  // 2: bf16
  int64_t reduce_bytes = 4;
  double kept_numbers = 2;   // of 4 bytes a parameter: of the optimizer and of a moving average
  double batches_ahead = 4;  // micro-batches that the loader decodes ahead: data.prefetch
  bool accumulates = false;  // a step has several micro-batches: gradients of one outlive the next's forward
  bool keeps_activations = false;  // outputs of norms and GELUs are kept for backward (arch/vit.h)
};

/// Predicted peak per rank for `batch` images a rank and micro-batch. Errors: UserError when the plan's units
/// are not the model's.
Memory predict_memory(const arch::ModelConfig& config, const Plan& plan, const Precision& precision,
                      int64_t batch);

/// Bytes per rank of a model that only answers, as a teacher does: a slice of its weights, units gathered at
/// once, and of `batch` images the activations of the unit that has most. Errors: as predict_memory.
double answering_bytes(const arch::ModelConfig& config, const Plan& plan, const Precision& precision,
                       int64_t batch);

/// Bytes of a checkpoint that one rank holds: master weights and what is kept besides, in fp32, and buffers.
/// Errors: as predict_memory.
double saved_bytes(const arch::ModelConfig& config, const Plan& plan, double kept_numbers = 2);

/// "states 0.80 GiB, gradients 0.10 GiB, gathered 0.10 GiB, activations 0.18 GiB, program 16.0 MiB".
std::string parts_text(const Memory& memory);

}  // namespace tessera::plan
