// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/step_end_time.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/steady_mean.h"
#include "tessera/eager/state.h"
#include "tessera/eager/task.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/plan/spans.h"
#include "tessera/profile/head_start.h"
#include "tessera/profile/lone_rank.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/quiet_cores.h"
#include "tessera/profile/rank_thread.h"

namespace tessera::profile {
namespace {

constexpr int64_t kLeastRounds = 20;

recipe::Recipe tiny_recipe(const recipe::Recipe& recipe) {
  recipe::Recipe tiny = measured_recipe(recipe, nullptr);
  arch::VitConfig model;
  model.image_size = 16;
  model.patch_size = 8;
  model.width = model.mlp_width = 16;
  model.depth = model.heads = 1;
  model.classes = 2;
  tiny.model = model;
  tiny.train.mix = {};
  tiny.precision.linear = recipe::Linear::kAuto;
  return tiny;
}

struct Repeats {
  int64_t rounds = 1;
  double patience = 0;
};

/// Of this rank, one for each round.
std::vector<double> step_ends(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                              const Repeats& repeats, c10::Device device) {
  const auto state = eager::assemble(recipe, plan, mesh, /*with_optimizer=*/true, device);
  const eager::DeviceInput::Input input = random_input(recipe.model, 2, device);
  HeadStart head_start(device);
  const auto step_end = [&] {
    const at::Tensor logits = eager::forward(*state, input, /*training=*/true, /*key=*/1);
    const at::Tensor loss = state->task->loss_sum(logits, input.batch, {});
    state->sharded->backward(loss, /*last=*/true);
    mesh.world().barrier("profile");
    return timed_update(*state, loss.detach().to(at::kDouble), mesh, head_start);
  };
  std::optional<QuietCores> cores;
  if (device.is_cpu()) cores.emplace(repeats.patience, largest_of(mesh.world()));
  std::vector<double> seconds;
  for (int64_t round = 0; round <= repeats.rounds; ++round) {
    const double found = cores ? cores->measured(step_end) : step_end();
    if (round > 0) seconds.push_back(found);
  }
  return seconds;
}

}  // namespace

double measure_step_end(const recipe::Recipe& recipe, int64_t ranks, int64_t rounds, c10::Device device,
                        double patience) {
  const recipe::Recipe tiny = tiny_recipe(recipe);
  const plan::Plan plan = plan::uniform_plan(tiny.model, ranks, plan::Level::kReplicate, /*recompute=*/false,
                                             /*prefetch=*/1);
  const Repeats repeats{std::max(rounds, kLeastRounds), patience};
  if (!device.is_cpu()) {
    TESSERA_CHECK_EQ(ranks, 1);
    return steady_mean(step_ends(tiny, plan, *lone_rank(plan, "NCCL"), repeats, device));
  }
  std::vector<std::vector<double>> of_ranks(static_cast<size_t>(ranks));
  const mesh::ThreadRanks threads{.axes = {{"host", ranks}},
                                  .spans = plan::spans_of(plan),
                                  .timeout = recipe::timeout_of(recipe.run),
                                  .shared_memory = recipe.run.shared_memory,
                                  .threads = 1};
  mesh::run_on_thread_ranks(threads, [&](mesh::Mesh& mesh) {
    const RankThread thread(1);
    of_ranks[static_cast<size_t>(mesh.rank())] = step_ends(tiny, plan, mesh, repeats, device);
  });
  std::vector<double> all;
  for (const auto& seconds : of_ranks) all.insert(all.end(), seconds.begin(), seconds.end());
  return steady_mean(all);
}

}  // namespace tessera::profile
