// SPDX-License-Identifier: Apache-2.0
// What every command that computes sets up first: threads, ranks that met, dtype, log.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/data/source_mix.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/make_plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

using recipe::batch_sizes;
using recipe::layout_warnings;
using recipe::make_plan;

/// Sets the intra-op threads to launch::threads_per_rank(recipe.run.threads) and returns them. Errors:
/// UserError on more than a host can use.
int64_t set_threads(const recipe::Recipe& recipe, const launch::Ranks& ranks);

/// Runs `prepare`. Where it throws a UserError, the other ranks end with that as well instead of waiting for
/// this one: they may be on their way to connect(). `timeout`: of finding them.
void before_meeting(std::chrono::milliseconds timeout, const launch::Ranks& ranks,
                    const std::function<void()>& prepare);

/// Meets the other ranks, or pretends that they are there; the mesh has the groups of `plan`, of make_plan().
/// All must run this build and have the same `facts`, which may take seconds to read and are asked for only
/// where ranks meet. Never freed after a failure: destructors of a broken group may wait.
std::unique_ptr<mesh::Mesh> connect(const recipe::Recipe& recipe, const plan::Plan& plan,
                                    const launch::Ranks& ranks, const std::function<mesh::Facts()>& facts);

/// Names of the mesh's axes for the recipe's plan: "pipeline" where there are stages; "shard", and with
/// shard.ranks "dp" over it; with tensor parallelism the groups of the units that are cut, "tensor" as the
/// fastest axis (adjacent) or the slowest (strided). Where these units have different groups, "dp" for all
/// ranks of a stage.
std::vector<mesh::Axis> mesh_axes(const recipe::Recipe& recipe, const plan::Plan& plan);
/// Groups of ranks that a run needs besides those of the axes: the plan's, and those of distill.teacher,
/// which the keys shard.* lay out even where the plan is a file.
std::vector<mesh::Span> mesh_spans(const recipe::Recipe& recipe, const plan::Plan& plan);
/// What memory and traffic depend on, for `world` ranks. `device`: where the run computes; what kAuto means
/// depends on it.
/// run.keep_activations = "auto" counts as "never": choose_for_device() of device.h decides it.
plan::CostInputs cost_inputs(const recipe::Recipe& recipe, int64_t world, at::Device device = at::kCPU);
/// The recipe with that decision.
recipe::Recipe with_kept_activations(recipe::Recipe recipe, bool keeps);
using Warn = std::function<void(const std::string& line)>;
data::SourceOptions source_options(const recipe::Recipe& recipe, Warn warn = {});
/// The recipe's training sources as one.
data::MixedSource open_training(const recipe::Recipe& recipe, Warn warn = {});
/// The source with data.ram_cache's memory; as it is with "none". Collective. Counts on `free_bytes` on this
/// host.
std::unique_ptr<data::Source> with_ram_cache(std::unique_ptr<data::Source> source,
                                             const recipe::Recipe& recipe, double free_bytes,
                                             mesh::Mesh& mesh, Log& log);
/// Common loader settings. Where the recipe leaves the workers open they are as many as the cores that the
/// computing threads leave to this rank, and stay on those; where they leave none, one that shares theirs.
/// More than that, asked for by the recipe, is warned about. load_for() adds what depends on the plan.
data::LoaderOptions loader_options(const recipe::Recipe& recipe, const launch::Ranks& ranks, int64_t threads,
                                   Log& log);

/// Makes them those of a rank of this plan: samples are balanced over its tensor groups. In a pipeline the
/// ranks of the first stage load, each for those of the same place in the other stages, which have no workers
/// and must not ask for a batch.
void load_for(const plan::Plan& plan, data::LoaderOptions* options);

/// Bytes: plan::predict_memory's total, with checkpoint.async the copy that is being written, and the
/// teacher's. Errors: UserError when distill.teacher cannot be opened.
double predicted_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank);

/// While the result lives the other ranks are told that this one advances as long as operations on its files
/// end. Null without a watchdog.
std::unique_ptr<launch::FileWatchdog::Progress> tell_progress(launch::FileWatchdog* files, mesh::Mesh& mesh);

/// Refuses (UserError, with what would save how much) a run that will not fit this host's memory.
/// `otherwise`: what else the command offers, at the message's end.
void check_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                  const launch::Ranks& ranks, const std::string& otherwise = "; --force runs it anyway");

/// A change of settings, and the bytes of a rank that it would save.
struct MemorySaving {
  const char* change;
  double bytes;
};
using MemorySavings = std::vector<MemorySaving>;

/// Which single changes would save memory.
MemorySavings memory_savings(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                             const launch::Ranks& ranks);

/// The hint of an error about memory: "per rank: shard.recompute = true would save 3 GiB; ...". `otherwise`:
/// what else the command offers, "; ..." or nothing. `too_much`: bytes of a rank above what there is; then
/// the smallest change that is enough is named. 0: not known.
std::string savings_hint(const MemorySavings& savings, const std::string& otherwise = "",
                         double too_much = 0);

/// "; most of it is activations, 3 GiB a rank of stage 1": of the rank that is predicted to need most.
std::string largest_part(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank);

/// Runs `body` and turns what it throws into one of our errors that says where: silent ranks after a
/// CommError, step, unit, wanted bytes and `hint` when memory ran out. `where` is asked after the failure.
/// Then `mesh` is released and never destroyed: the destructor of a broken group may wait for ranks that are
/// gone.
int guarded(const std::function<int()>& body, std::unique_ptr<mesh::Mesh>& mesh,
            const std::function<std::string()>& where, const std::string& hint);

}  // namespace tessera::eager
