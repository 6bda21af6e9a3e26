// SPDX-License-Identifier: Apache-2.0
// `tessera plan profile`: measures units, links, updates and data of a recipe on this host.
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/median.h"
#include "tessera/base/on_threads.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/base/warn.h"
#include "tessera/data/loader.h"
#include "tessera/eager/device.h"
#include "tessera/eager/device_input.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/launch/surroundings.h"
#include "tessera/mesh/reason.h"
#include "tessera/planner/assumed_profile.h"
#include "tessera/planner/profile_json.h"
#include "tessera/profile/busy_ranks_slowdown.h"
#include "tessera/profile/exchange_work.h"
#include "tessera/profile/link_times.h"
#include "tessera/profile/pass_times.h"
#include "tessera/profile/slowdown.h"
#include "tessera/profile/step_end_time.h"
#include "tessera/train/commands.h"
#include "tessera/train/print_links.h"
#include "tessera/train/profile_scope.h"

namespace tessera::train {
namespace {

/// "2026-11-27T09:00:00Z".
std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

/// "Intel(R) Xeon(R) ...; avx2 avx512f".
std::string processor() {
  const std::string machine = launch::machine_description(), separator = "; ";
  const size_t system_ends = machine.find(separator);
  return system_ends == std::string::npos ? machine : machine.substr(system_ends + separator.size());
}

launch::Ranks ranks_of_host(int64_t count, int64_t rank = 0) {
  launch::Ranks ranks;
  ranks.rank = ranks.local_rank = rank;
  ranks.world = ranks.local_world = count;
  return ranks;
}

/// The recipe's source, or images made in memory where it cannot be opened or has too few images.
data::MixedSource open_images(const recipe::Recipe& recipe, int64_t least) {
  const std::string why_not = [&]() -> std::string {
    if (recipe.data.source.empty()) return "the recipe has no data.source";
    try {
      data::MixedSource source = eager::open_training(recipe);
      return source.source->size() >= least ? "" : concat(recipe.data.source, " has too few images");
    } catch (const UserError& error) {
      return error.what();
    }
  }();
  if (why_not.empty()) return eager::open_training(recipe);
  warn(concat("data_seconds is measured with generated images, without decoding: ", why_not));
  recipe::Recipe fake = recipe;
  fake.data.source = concat("fake:", std::max<int64_t>(least, 1024));
  fake.data.mix.clear();
  fake.data.mix_train.clear();
  fake.data.mix_weights.clear();
  fake.data.classes.clear();
  return eager::open_training(fake);
}

/// What is measured, and where.
struct Measured {
  const PlanProfileJob& job;
  at::Device device;
  ProfileScope scope;
  double patience = 0;
  int64_t threads = 1;  // of a rank
  bool prints() const { return !job.json; }
};

/// Seconds for an image of one rank, while all ranks load.
double measure_data(const Measured& what) {
  constexpr double kLeastSeconds = 1, kMostSeconds = 5;
  constexpr int64_t kLeastBatches = 4;
  const int64_t batch = std::ranges::max(what.scope.batches), ranks = what.scope.ranks;
  const recipe::Recipe& recipe = what.job.recipe;
  const data::MixedSource images = open_images(recipe, ranks * batch);
  std::vector<double> seconds(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](int64_t rank) {
    Log quiet(false);
    data::LoaderOptions options =
        eager::loader_options(recipe, ranks_of_host(ranks, rank), what.threads, quiet);
    options.order.mix = images.parts;
    options.batch = batch * ranks;
    eager::deliver_for(what.device, &options);
    data::TrainLoader loader(*images.source, recipe.data.transform, options, 0);
    // What was loaded ahead before the clock starts must not count: as much is ahead when it stops.
    for (int64_t i = 0; i <= options.prefetch; ++i) loader.give_back(loader.next());
    const auto start = std::chrono::steady_clock::now();
    int64_t batches = 0;
    for (double passed = 0; passed < kMostSeconds; passed = seconds_since(start)) {
      if (batches >= kLeastBatches && passed >= kLeastSeconds) break;
      loader.give_back(loader.next());
      ++batches;
    }
    seconds[static_cast<size_t>(rank)] = seconds_since(start) / static_cast<double>(batches * batch);
  });
  return median(seconds);
}

void print_head(const Measured& what, const planner::Profile& profile) {
  const planner::Provenance& from = profile.provenance;
  std::vector<std::string> degrees, batches;
  for (const int64_t degree : what.scope.tensor) degrees.push_back(std::to_string(degree));
  for (const int64_t batch : what.scope.batches) batches.push_back(std::to_string(batch));
  std::printf("%s\n%s on %s (%s), %s, %ld %s x %ld threads, tensor %s, batch %s, %ld rounds%s\n",
              arch::describe(profile.model).c_str(), from.device.c_str(), from.host.c_str(),
              from.processor.c_str(), from.compute.c_str(), static_cast<long>(what.scope.ranks),
              what.scope.ranks == 1 ? "rank" : "ranks", static_cast<long>(from.threads),
              join(degrees, ", ").c_str(), join(batches, ", ").c_str(), static_cast<long>(from.rounds),
              from.keeps_activations ? ", outputs of norms and GELUs kept" : "");
  if (!from.assumed_links.empty())
    std::printf("messages between ranks and slowdowns are assumed: %s\n", from.assumed_links.c_str());
  std::fflush(stdout);
}

void print_units(const planner::Profile& profile) {
  const bool replays =
      std::ranges::any_of(profile.units, [](const auto& unit) { return unit.replayed != 1; });
  const bool has_peers =
      std::ranges::any_of(profile.units, [](const auto& unit) { return unit.peers.has_value(); });
  std::printf("\n%-12s %6s %6s %-9s %12s %12s %8s%s%s\n", "unit", "tensor", "batch", "recompute",
              "forward ms", "backward ms", "spread", replays ? "   replayed" : "",
              has_peers ? "   with peers, ms longer" : "");
  for (const planner::UnitTimes& unit : profile.units) {
    std::printf("%-12s %6ld %6ld %-9s %12.3f %12.3f %6.1f %%", unit.kind.c_str(),
                static_cast<long>(unit.tensor), static_cast<long>(unit.batch),
                plan::to_string(unit.recompute).c_str(), 1e3 * unit.forward, 1e3 * unit.backward,
                100 * unit.spread);
    if (unit.replayed != 1) std::printf("   x %.3f", unit.replayed);
    if (unit.peers) std::printf("   %8.3f + %8.3f", 1e3 * unit.peers->forward, 1e3 * unit.peers->backward);
    std::printf("\n");
  }
  std::fflush(stdout);
}

void print_rest(const planner::Profile& profile) {
  std::printf("\n%-44s %10.2f\n%-44s %10.2f\n", "passes beside messages, times slower",
              profile.compute_slowdown, "messages beside passes, times slower", profile.link_slowdown);
  std::printf("%-44s %10.3f\n", "passes while all ranks compute, times slower", profile.busy_ranks_slowdown);
  std::printf("%-44s %10.3f\n%-44s %10.3f\n", "update, ns for each value of a rank",
              1e9 * profile.optimizer_seconds, "a first micro-batch's gradient in fp32, ns",
              1e9 * profile.widen_seconds);
  std::printf("%-44s %10.3f\n%-44s %10.3f\n", "adding a later one's, ns a value",
              1e9 * profile.accumulate_seconds, "adding a sum over ranks, ns a value",
              1e9 * profile.add_sum_seconds);
  std::printf("%-44s %8.1f %%\n%-44s %8.1f %%\n", "waiting for the slowest rank behind each unit",
              100 * profile.unit_lag, "the same behind a micro-batch", 100 * profile.micro_batch_lag);
  std::printf("%-44s %10.3f\n%-44s %10.3f\n", "data, ms for each image of a rank", 1e3 * profile.data_seconds,
              "votes and other work of a step, ms", 1e3 * profile.step_seconds);
  std::fflush(stdout);
}

/// Everything but what is measured.
planner::Profile described(const Measured& what) {
  const recipe::Recipe& recipe = what.job.recipe;
  planner::Profile profile;
  profile.model = recipe.model;
  planner::Provenance& from = profile.provenance;
  from.host = launch::host_name();
  from.processor = processor();
  from.device = eager::device_name(what.device);
  from.build =
      concat("tessera ", build_info().version, " (", build_info().commit, "), LibTorch ", TORCH_VERSION);
  from.date = now_utc();
  from.compute = eager::dtype_name(eager::resolve_dtype(recipe.precision.compute, what.device));
  from.automatic_compute = eager::dtype_name(eager::resolve_dtype(recipe::Dtype::kAuto, what.device));
  from.threads = what.threads;
  from.ranks_of_host = what.scope.ranks;
  from.rounds = what.job.rounds;
  from.memory_bytes = eager::device_bytes(what.device);
  // Where there is room a training keeps them.
  from.keeps_activations =
      !what.device.is_cpu() && recipe.run.keep_activations != recipe::KeepActivations::kNever;
  if (what.job.machine) planner::assume_links(*what.job.machine, &profile);
  return profile;
}

/// What was measured on slowed cores is not what a training takes on others.
void warn_if_slowed(double share) {
  constexpr double kFew = 0.1;
  if (share <= kFew) return;
  warn(concat("something else slowed the cores during ", std::lround(100 * share),
              " % of the passes: what is predicted from this profile may be as wrong as the machine's speed "
              "changes; wait longer "
              "with --patience, or measure when other programs, and others on a shared machine, are idle"));
}

void measure_units(const Measured& what, const profile::PassSettings& passes, planner::Profile* profile) {
  profile::PassTimes found = [&] {
    try {
      return profile::measure_passes(passes);
    } catch (const c10::OutOfMemoryError& error) {
      user_error({.where = "train.plan_profile",
                  .problem = concat("the memory is too small for ", std::ranges::max(what.scope.batches),
                                    " images: ", mesh::plain_reason(error)),
                  .hint = "give smaller --batches"});
    }
  }();
  profile->units = std::move(found.units);
  profile->optimizer_seconds = found.optimizer_seconds;
  profile->widen_seconds = found.widen_seconds;
  profile->accumulate_seconds = found.accumulate_seconds;
  profile->add_sum_seconds = found.add_sum_seconds;
  profile->unit_lag = found.lag.unit;
  profile->micro_batch_lag = found.lag.micro_batch;
  profile->provenance.slowed = found.slowed;
  warn_if_slowed(found.slowed);
  if (what.prints()) print_units(*profile);
}

/// Between ranks that compute on the CPU.
void measure_messages(const Measured& what, const profile::PassSettings& passes, planner::Profile* profile) {
  const recipe::Recipe& recipe = what.job.recipe;
  const at::ScalarType dtype = eager::resolve_dtype(recipe.precision.compute);
  const profile::LinkSettings links{.ranks = what.scope.ranks,
                                    .threads = what.threads,
                                    .shared_memory = recipe.run.shared_memory,
                                    .dtype = dtype,
                                    .wire = eager::resolve_dtype(recipe.precision.reduce),
                                    .rounds = what.job.rounds,
                                    .compute_per_byte = profile::compute_per_exchanged_byte(
                                        *profile, recipe, static_cast<int64_t>(at::elementSize(dtype))),
                                    .timeout = recipe::timeout_of(recipe.run),
                                    .patience = what.patience};
  profile->links = profile::measure_links(links);
  if (what.prints()) print_links(profile->links);
  const profile::Slowdown slowdown = profile::measure_slowdown(passes, links);
  profile->compute_slowdown = slowdown.compute;
  profile->link_slowdown = slowdown.link;
}

/// 0 where ranks slow each other's cores.
double patience_of(const PlanProfileJob& job, at::Device device, int64_t threads_of_host) {
  if (!device.is_cpu() && job.patience)
    user_error({.where = "train.plan_profile",
                .problem = "--patience is for measurements on CPUs, and this profile is of a GPU",
                .hint = "leave --patience out"});
  if (threads_of_host <= launch::available_cores()) return job.patience.value_or(kPatience);
  if (job.patience.value_or(0) > 0)
    warn("--patience has no effect: threads share cores, and slow each other");
  return 0;
}

}  // namespace

int plan_profile(const PlanProfileJob& job) {
  const at::Device device = eager::choose_device(job.recipe, ranks_of_host(1));
  Measured what{job, device, profile_scope(job, !device.is_cpu(), launch::available_cores())};
  what.threads = eager::set_threads(job.recipe, ranks_of_host(what.scope.ranks));
  what.patience = patience_of(job, device, what.scope.ranks * what.threads);
  planner::Profile profile = described(what);
  if (what.prints()) print_head(what, profile);

  profile.step_seconds =
      profile::measure_step_end(job.recipe, what.scope.ranks, job.rounds, device, what.patience);
  const profile::PassSettings passes{job.recipe,
                                     what.scope.tensor,
                                     what.scope.batches,
                                     job.rounds,
                                     what.scope.ranks,
                                     what.threads,
                                     {device, profile.provenance.keeps_activations},
                                     device.is_cpu() ? 0 : profile.step_seconds,
                                     what.patience,
                                     /*with_peers=*/!job.machine};
  measure_units(what, passes, &profile);
  if (device.is_cpu() && !job.machine)
    profile.busy_ranks_slowdown = profile::measure_busy_ranks_slowdown(passes);
  if (device.is_cpu() && !job.machine) measure_messages(what, passes, &profile);
  profile.data_seconds = measure_data(what);
  if (what.prints()) print_rest(profile);

  const std::string json = planner::to_json(profile);
  write_file_atomic(job.output, json);
  if (job.json) {
    std::cout << json << std::flush;
  } else {
    std::cout << "\nwrote " << job.output << std::endl;
  }
  return kExitDone;
}

}  // namespace tessera::train
