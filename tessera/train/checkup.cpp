// SPDX-License-Identifier: Apache-2.0
// Measures for `tessera doctor` what tessera/monitor/checkup.h judges.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "tessera/arch/model.h"
#include "tessera/base/text.h"
#include "tessera/data/measure.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/device/in_use.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/device.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/traffic.h"
#include "tessera/profile/link.h"
#include "tessera/profile/rates.h"
#include "tessera/train/commands.h"
#include "tessera/train/prepared.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kFilesOfAProgram = 64;  // libraries, data, logs, metrics
constexpr int64_t kSocketsAPeer = 8;      // of a run's groups, with another rank
constexpr int64_t kImages = 256;          // decoded to find out how fast

/// Where the run's checkpoints will lie, as far as that is there already.
fs::path nearest_folder(fs::path folder) {
  std::error_code ignored;
  folder = fs::absolute(folder);
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

int64_t files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) {
    return std::numeric_limits<int64_t>::max();
  }
  return static_cast<int64_t>(limit.rlim_max);
}

/// Checkpoints that lie there at the end, and one that is being written.
int64_t most_checkpoints(const recipe::Recipe& recipe, int64_t steps) {
  const int64_t every = recipe.checkpoint.keep_every;
  return recipe.checkpoint.keep + recipe.checkpoint.keep_best + 1 +  // the new one
         (every > 0 ? steps / every : 0);
}

void look_at_data(const recipe::Recipe& recipe, const launch::Ranks& ranks, int64_t threads, Log& log,
                  monitor::CheckupFacts& facts) {
  const data::MixedSource mix =
      eager::open_training(recipe, [&log](const std::string& line) { log.warn(line); });
  check_classes(*mix.source, recipe);
  const recipe::BatchSizes sizes = eager::batch_sizes(recipe, eager::make_plan(recipe, ranks.world));
  const recipe::StepCounts counts = recipe::count_steps(recipe, mix.source->size(), sizes.batch);
  facts.checkpoints = most_checkpoints(recipe, counts.total);
  facts.workers_per_rank = eager::loader_options(recipe, ranks, threads, log).workers;
  data::MeasureOptions options;
  options.images = std::min(kImages, mix.source->size());
  options.rounds = 1;
  options.batch = std::min<int64_t>(options.batch, options.images);
  options.threads = {facts.workers_per_rank * ranks.local_world};
  options.transform = recipe.data.transform;
  const data::Source* source = mix.source.get();
  facts.images_decoded = data::measure({&source, 1}, options).front().pipelines.front().images_per_second;
  facts.data = recipe.data.source;
}

/// Ranks that a launcher started meet as the run's will; those of --procs do so as threads.
/// (More than 5 parameters: what is known before ranks meet, and what is found.)
void look_at_link(const recipe::Recipe& recipe, const launch::Ranks& ranks, const plan::Plan& plan,
                  const recipe::BatchSizes& sizes, at::Device device, monitor::CheckupFacts& facts) {
  if (ranks.world == 1) return;
  const at::ScalarType made = eager::resolve_dtype(recipe.precision.compute, device),
                       asked = eager::resolve_dtype(recipe.precision.reduce, device);
  const at::ScalarType wire = at::elementSize(made) < at::elementSize(asked) ? made : asked;
  profile::LinkRates rates;
  if (ranks.launcher == "local") {
    rates = profile::measure_local_link(ranks.world, wire, recipe.run.shared_memory);
  } else {
    auto mesh =
        eager::connect(recipe, plan, ranks, [&] { return eager::computing_facts(recipe, plan, device); });
    eager::guarded(
        [&] {
          rates = profile::measure_link(*mesh, wire);
          mesh->world().barrier("link");
          return kExitDone;
        },
        mesh, [] { return std::string("while measuring the link"); }, "");
  }
  facts.link = rates.how;
  facts.gather_rate = rates.gather;
  facts.reduce_rate = rates.reduce;
  const plan::StepTraffic traffic =
      plan::step_traffic(recipe.model, plan, eager::cost_inputs(recipe, ranks.world, device),
                         sizes.accumulation, sizes.per_rank);
  // Activations are gathered as often as they are summed, but for what backward makes again.
  // Links are measured by gathers and reductions alone.
  const double between_layers = traffic.exchanged + traffic.passed;
  facts.gathered_bytes = traffic.gathered + between_layers / 2;
  facts.reduced_bytes = traffic.reduced + between_layers / 2;
  facts.images_per_step = sizes.per_rank * sizes.accumulation;
}

/// What the ranks of this host compute with: memory in which they need theirs, and how fast they multiply.
void look_at_devices(const recipe::Recipe& recipe, const launch::Ranks& ranks, at::Device device,
                     monitor::CheckupFacts& facts) {
  const auto local = static_cast<double>(ranks.local_world);
  const device::CudaInUse cuda = device::cuda_in_use();
  // Before anything is measured there: LibTorch keeps the memory. Each rank has a GPU of its own.
  facts.memory_free = cuda.plugin != nullptr
                          ? local * static_cast<double>(cuda.plugin->device(cuda.device).free_bytes)
                          : static_cast<double>(launch::available_memory());
  const double tflops =
      profile::measure_matmul_tflops(eager::resolve_dtype(recipe.precision.compute, device), device);
  if (cuda.plugin != nullptr) {
    facts.tflops = local * tflops;
    return;
  }
  // One rank's threads were measured; all ranks of the host share its cores.
  const int64_t used = std::min(facts.cores, facts.threads_per_rank * ranks.local_world);
  facts.tflops =
      tflops * static_cast<double>(used) / static_cast<double>(std::min(facts.cores, facts.threads_per_rank));
}

}  // namespace

monitor::CheckupFacts measure_for_checkup(const recipe::Recipe& recipe, const launch::Ranks& ranks) {
  static_cast<void>(matched_groups(recipe));  // refuses what a training would refuse
  Log log(true);
  monitor::CheckupFacts facts;
  facts.world = ranks.world;
  facts.local_ranks = ranks.local_world;
  facts.cores = launch::available_cores();
  facts.threads_per_rank = eager::set_threads(recipe, ranks);
  const plan::Plan plan = eager::make_plan(recipe, ranks.world);
  const recipe::BatchSizes sizes = eager::batch_sizes(recipe, plan);
  // Ranks that are threads cannot share a GPU's group: they meet before one is chosen.
  const bool as_threads = ranks.launcher == "local";
  if (as_threads) look_at_link(recipe, ranks, plan, sizes, at::kCPU, facts);
  const at::Device device = eager::choose_device(recipe, ranks);
  if (!as_threads) look_at_link(recipe, ranks, plan, sizes, device, facts);
  if (ranks.rank > 0) return facts;
  look_at_data(recipe, ranks, facts.threads_per_rank, log, facts);
  facts.memory_per_rank = eager::predicted_memory(recipe, plan, sizes.per_rank);
  facts.checkpoint_bytes = plan::saved_bytes(recipe.model, plan, recipe::kept_numbers(recipe)) *
                           static_cast<double>(ranks.local_world);
  const std::string& folder = recipe.checkpoint.dir.empty() ? recipe.run.dir : recipe.checkpoint.dir;
  const fs::path disk = nearest_folder(folder.empty() ? "runs" : folder);
  facts.disk_folder = disk.string();
  std::error_code failed;
  const fs::space_info space = fs::space(disk, failed);
  facts.disk_free = failed ? 0 : static_cast<double>(space.available);
  facts.files_needed = kFilesOfAProgram + kSocketsAPeer * (ranks.world - 1);
  facts.files_limit = files_limit();
  look_at_devices(recipe, ranks, device, facts);
  facts.flops_per_image = arch::training_flops(recipe.model);
  return facts;
}

}  // namespace tessera::train
