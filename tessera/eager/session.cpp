// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/session.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <new>
#include <regex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/ram_cache.h"
#include "tessera/data/say_once.h"
#include "tessera/data/worker_cores.h"
#include "tessera/device/in_use.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/state.h"
#include "tessera/eager/teacher.h"
#include "tessera/mesh/launched.h"
#include "tessera/plan/memory.h"
#include "tessera/recipe/cost_inputs.h"

namespace tessera::eager {
namespace {

// What no step gets faster with, and what may end in thousands of threads that wait for each other.
constexpr int64_t kThreadsAnywhere = 64, kThreadsACore = 16;

/// Bytes named in an allocator's message; 0: not a message about memory.
double bytes_wanted(const std::exception& error) {
  static const std::regex pattern("tr(?:y|ied) to allocate (\\d+) bytes");
  const std::string text = error.what();
  std::smatch match;
  if (std::regex_search(text, match, pattern)) return std::stod(match[1]);
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? -1 : 0;
}

void add_saving(const char* change, double before, double after, MemorySavings* savings) {
  if (before > after) savings->push_back({change, before - after});
}

}  // namespace

int64_t set_threads(const recipe::Recipe& recipe, const launch::Ranks& ranks) {
  const int64_t cores = launch::available_cores(), most = std::max(kThreadsAnywhere, kThreadsACore * cores);
  if (recipe.run.threads > most) {
    user_error({.where = "train.threads",
                .problem = concat("run.threads is ", recipe.run.threads),
                .expected = concat("at most ", most, " on the ", cores, cores == 1 ? " core" : " cores",
                                   " of this host")});
  }
  const int64_t threads = launch::threads_per_rank(recipe.run.threads, ranks);
  if (threads > most) {
    user_error({.where = "train.threads",
                .problem = concat("OMP_NUM_THREADS asks for ", threads, " threads"),
                .expected = concat("at most ", most, " on the ", cores, cores == 1 ? " core" : " cores",
                                   " of this host"),
                .hint = "set run.threads or another OMP_NUM_THREADS"});
  }
  at::set_num_threads(static_cast<int>(threads));
  return threads;
}

void before_meeting(std::chrono::milliseconds timeout, const launch::Ranks& ranks,
                    const std::function<void()>& prepare) {
  try {
    prepare();
  } catch (const std::exception& error) {
    // The parent of local ranks ends the others by itself.
    const std::string text = error.what();
    if (!ranks.pretended() && ranks.launcher != "local")
      mesh::tell_refusal(mesh::rendezvous(ranks, timeout), text.substr(0, text.find('\n')));
    throw;
  }
}

std::unique_ptr<mesh::Mesh> connect(const recipe::Recipe& recipe, const plan::Plan& plan,
                                    const launch::Ranks& ranks, const std::function<mesh::Facts()>& facts) {
  const std::vector<mesh::Axis> axes = mesh_axes(recipe, plan);
  const std::vector<mesh::Span> spans = mesh_spans(recipe, plan);
  const std::vector<mesh::Link> links = plan::links_of(plan);
  if (ranks.pretended()) return mesh::Mesh::pretend(ranks.rank, axes, spans, links, ranks.network);
  // Before the transports start their threads. Other launchers bind ranks themselves.
  if (ranks.launcher == "local" && device::device_in_use().is_cpu())
    launch::stay_on_own_cores(ranks.local_rank, ranks.local_world, at::get_num_threads());
  const auto timeout = recipe::timeout_of(recipe.run);
  mesh::Rendezvous rendezvous = mesh::rendezvous(ranks, timeout);
  rendezvous.shared_memory = recipe.run.shared_memory;
  mesh::Facts all;
  if (ranks.world > 1)
    before_meeting(timeout, ranks, [&] { all = joined_facts({{mesh::program_fact()}, facts()}); });
  return std::make_unique<mesh::Mesh>(rendezvous, axes, all, spans, links);
}

plan::CostInputs cost_inputs(const recipe::Recipe& recipe, int64_t world, at::Device device) {
  const auto bytes = [device](recipe::Dtype dtype) {
    return static_cast<int64_t>(at::elementSize(resolve_dtype(dtype, device)));
  };
  const auto& train = recipe.train;
  const bool fixed = train.accumulation > 0 || train.batch_per_rank == 0;  // else the batch decides
  return recipe::cost_inputs(
      recipe, {.compute_bytes = bytes(recipe.precision.compute),
               .reduce_bytes = bytes(recipe.precision.reduce),
               .accumulates = fixed ? train.accumulation > 1 : train.batch > train.batch_per_rank * world,
               .on_cpu = device.is_cpu()});
}

recipe::Recipe with_kept_activations(recipe::Recipe recipe, bool keeps) {
  recipe.run.keep_activations = keeps ? recipe::KeepActivations::kAlways : recipe::KeepActivations::kNever;
  return recipe;
}

data::SourceOptions source_options(const recipe::Recipe& recipe, Warn warn) {
  data::SourceOptions options{recipe.model.image_size(), recipe.model.channels(), recipe.model.classes()};
  options.index_dir = recipe.data.index_dir;
  options.image_key = recipe.data.image_key;
  options.label_key = recipe.data.label_key;
  options.label_offset = recipe.data.label_offset;
  options.classes = recipe.data.classes;
  options.key = "data.source";
  options.warn = std::move(warn);
  return options;
}

data::MixedSource open_training(const recipe::Recipe& recipe, Warn warn) {
  data::SourceMix mix{{recipe.data.source}, {recipe.data.train}, recipe.data.mix_weights};
  const auto& splits = recipe.data.mix_train;
  for (size_t i = 0; i < recipe.data.mix.size(); ++i) {
    mix.specs.push_back(recipe.data.mix[i]);
    mix.splits.push_back(splits.empty() ? recipe.data.train : splits.size() == 1 ? splits[0] : splits.at(i));
  }
  return data::open_source_mix(mix, source_options(recipe, std::move(warn)));
}

std::unique_ptr<data::Source> with_ram_cache(std::unique_ptr<data::Source> source,
                                             const recipe::Recipe& recipe, double free_bytes,
                                             mesh::Mesh& mesh, Log& log) {
  if (recipe.data.ram_cache == "none") return source;
  data::RamCacheOptions options;
  options.whole = recipe.data.ram_cache == "full";
  options.bytes = recipe.data.ram_cache_gib * (1 << 30);
  options.available_bytes = std::max(free_bytes, 0.0);
  options.say = [&log](const std::string& line) { log.info(concat("  ", line)); };
  options.warn = [&log](const std::string& line) { log.warn(line); };
  return data::open_ram_cache(std::move(source), options, {mesh.rank(), [&mesh](const std::string& text) {
                                                             return mesh.world().all_gather_text(text,
                                                                                                 "ram cache");
                                                           }});
}

void load_for(const plan::Plan& plan, data::LoaderOptions* options) {
  options->tensor_spans = plan::tensor_spans(plan);
  if (plan.stages == 1) return;
  if (plan::stage_of(plan, options->rank) > 0) options->workers = 0;  // the first stage loads
  options->rank %= plan.stage_ranks();
  options->world = plan.stage_ranks();
}

data::LoaderOptions loader_options(const recipe::Recipe& recipe, const launch::Ranks& ranks, int64_t threads,
                                   Log& log) {
  data::LoaderOptions options;
  options.seed = recipe.train.seed;
  options.rank = ranks.rank;
  options.world = ranks.world;
  const std::set<int> cpus = launch::allowed_cpus();
  data::Workers workers = data::choose_workers(recipe.data.workers,
                                               {ranks.local_rank, ranks.local_world, threads,
                                                launch::cores_per_rank(ranks), launch::available_cores()},
                                               {cpus.begin(), cpus.end()});
  options.workers = workers.count;
  options.worker_cores = std::move(workers.cores);
  for (const std::string& line : workers.warnings) {
    if (ranks.local_rank == 0) log.warn(line);
  }
  options.prefetch = recipe.data.prefetch;
  options.order = recipe.data.order;
  options.fail_on_error = recipe.data.on_error == "fail";
  options.error_limit = recipe.data.error_limit;
  options.ranks_decide = true;
  options.mix = recipe.train.mix;
  options.warn = data::say_once([&log](const std::string& line) { log.warn(line); });
  return options;
}

namespace {

/// Without the teacher's, whose file is not opened.
double own_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank) {
  const double copy =
      recipe.checkpoint.async ? plan::saved_bytes(recipe.model, plan, recipe::kept_numbers(recipe)) : 0;
  const plan::CostInputs inputs = cost_inputs(recipe, plan.world, device::device_in_use());
  const plan::Memory memory = plan::predict_memory(recipe.model, plan, inputs, batch_per_rank);
  double needed = memory.total();
  if (recipe.precision.final_evaluation == recipe::Dtype::kFloat32 && inputs.compute_bytes < 4) {
    // The weights once more, when training's activations and gradients are gone.
    const int64_t batch = recipe.train.eval_batch > 0 ? recipe.train.eval_batch : batch_per_rank;
    const bool offloads = std::ranges::any_of(  // then gradients stay
        plan.units, [](const plan::UnitPlan& unit) { return unit.offload != plan::Offload::kNone; });
    needed = std::max(needed, needed - memory.activations - (offloads ? 0 : memory.gradients) +
                                  plan::inference_bytes(recipe.model, plan, {4, 4}, batch));
  }
  return needed + copy;
}

}  // namespace

double predicted_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank) {
  return own_memory(recipe, plan, batch_per_rank) +
         teacher_bytes(recipe, plan.world, batch_per_rank, device::device_in_use());
}

MemorySavings memory_savings(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                             const launch::Ranks& ranks) {
  const auto predict = [&](const plan::Plan& p, int64_t batch) { return own_memory(recipe, p, batch); };
  const double now = predict(plan, batch_per_rank);
  MemorySavings savings;
  recipe::Recipe cheaper = recipe, all_ranks = recipe, regathers = recipe;
  cheaper.shard.recompute = true;
  all_ranks.shard.ranks = 0;
  regathers.parallel.keep_gathered = false;
  const bool is_file = !recipe.parallel.plan.empty();  // it holds for one layout
  const auto add = [&](const char* change, const recipe::Recipe& changed, int64_t world) {
    if (!is_file) add_saving(change, now, predict(make_plan(changed, world), batch_per_rank), &savings);
  };
  add("shard.recompute = true", cheaper, ranks.world);
  add("shard.ranks = 0", all_ranks, ranks.world);
  add("parallel.keep_gathered = false", regathers, ranks.world);
  add_saving("run.keep_activations = never", now,
             own_memory(with_kept_activations(recipe, false), plan, batch_per_rank), &savings);
  add_saving("half the batch per rank", now, predict(plan, std::max<int64_t>(1, batch_per_rank / 2)),
             &savings);
  constexpr int64_t kMostDoubled = 1 << 23;  // a plan has at most twice as many
  if (ranks.world <= kMostDoubled) add("twice the ranks", recipe, 2 * ranks.world);
  return savings;
}

std::string savings_hint(const MemorySavings& savings, const std::string& otherwise, double too_much) {
  constexpr size_t kSeparator = 2;  // "; "
  std::string text;
  const MemorySaving* smallest = nullptr;
  for (const MemorySaving& saving : savings) {
    text += concat("; ", saving.change, " would save ", human_bytes(saving.bytes));
    if (too_much > 0 && saving.bytes >= too_much && (smallest == nullptr || saving.bytes < smallest->bytes))
      smallest = &saving;
  }
  if (savings.empty()) return otherwise.empty() ? "" : otherwise.substr(kSeparator);
  if (too_much > 0) {
    text += smallest != nullptr
                ? concat("; the smallest of these changes that is enough: ", smallest->change)
                : concat("; none of these changes is enough alone (", human_bytes(too_much), " a rank)");
  }
  return concat("per rank: ", text.substr(kSeparator), otherwise);
}

std::string largest_part(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank) {
  const auto stages = plan::predict_stage_memory(
      recipe.model, plan, cost_inputs(recipe, plan.world, device::device_in_use()), batch_per_rank);
  const auto most = std::ranges::max_element(stages, {}, &plan::Memory::total);
  const std::pair<const char*, double> parts[] = {{"states", most->states},
                                                  {"gradients", most->gradients},
                                                  {"gathered units", most->gathered},
                                                  {"activations", most->activations}};
  const auto* part = std::ranges::max_element(parts, {}, &std::pair<const char*, double>::second);
  return concat("; most of it is ", part->first, ", ", human_bytes(part->second), " a rank",
                stages.size() > 1 ? concat(" of stage ", most - stages.begin()) : "");
}

void check_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                  const launch::Ranks& ranks, const std::string& otherwise) {
  const double one = predicted_memory(recipe, plan, batch_per_rank);
  const double needed = one * static_cast<double>(ranks.local_world);
  const auto available = static_cast<double>(launch::available_memory());
  if (needed <= available) return;
  user_error({.where = "train.memory",
              .problem = concat("the run does not fit this host: ", ranks.local_world,
                                ranks.local_world == 1 ? " rank is" : " ranks are", " predicted to need ",
                                human_bytes(needed), ", but ", human_bytes(available), " are free",
                                largest_part(recipe, plan, batch_per_rank)),
              .hint = savings_hint(memory_savings(recipe, plan, batch_per_rank, ranks), otherwise,
                                   (needed - available) / static_cast<double>(ranks.local_world))});
}

std::unique_ptr<launch::FileWatchdog::Progress> tell_progress(launch::FileWatchdog* files, mesh::Mesh& mesh) {
  if (files == nullptr) return nullptr;
  return std::make_unique<launch::FileWatchdog::Progress>(*files, [&mesh] { mesh.note_progress(); });
}

namespace {

int explained(const std::function<int()>& body, mesh::Mesh& mesh, const std::function<std::string()>& where,
              const std::string& hint) {
  try {
    return body();
  } catch (const CommError& error) {
    throw mesh.explain(error, where());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (const double bytes = bytes_wanted(error); bytes != 0) {
      user_error({.where = "train.memory",
                  .problem = concat("out of memory on ", mesh.describe(), ", ", where(), ", wanting ",
                                    bytes > 0 ? human_bytes(bytes) : "more than there is"),
                  .hint = hint});
    }
    throw;
  }
}

}  // namespace

int guarded(const std::function<int()>& body, std::unique_ptr<mesh::Mesh>& mesh,
            const std::function<std::string()>& where, const std::string& hint) {
  try {
    return explained(body, *mesh, where, hint);
  } catch (...) {
    static_cast<void>(mesh.release());
    throw;
  }
}

}  // namespace tessera::eager
