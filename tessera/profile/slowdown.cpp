// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/slowdown.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

#include "tessera/base/clock.h"
#include "tessera/base/median.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/profile/quiet_cores.h"

namespace tessera::profile {
namespace {

using Clock = std::chrono::steady_clock;

/// One rank's micro-batches (a pass), without peers, and its messages, with them.
class OverlapRank {
 public:
  OverlapRank(const PassSettings& passes, const LinkSettings& links, mesh::Mesh& mesh)
      : mesh_(mesh),
        model_(measured_recipe(passes.recipe, nullptr), {.tensor = 1}),
        batch_(random_input(passes.recipe.model, std::ranges::max(passes.batches))),
        dtype_(links.dtype) {}

  /// Collective.
  Overlap measure() {
    if (!all_.defined()) size_message();
    Overlap overlap;
    overlap.pass_alone = together([&] { pass(); });
    overlap.message_alone = together([&] { gather().wait(); });
    mesh_.world().barrier("profile");
    const auto start = Clock::now();
    mesh::Pending message = gather();
    pass();
    overlap.pass = seconds_since(start);
    message.wait();
    overlap.message = seconds_since(start);
    return overlap;
  }

 private:
  double together(const std::function<void()>& work) {
    mesh_.world().barrier("profile");
    const auto start = Clock::now();
    work();
    return seconds_since(start);
  }
  void pass() {
    for (int64_t i = 0; i < micro_batches_; ++i) {
      model_.micro_batch(batch_, /*last=*/true);
      model_.forget_gradients();
    }
  }
  mesh::Pending gather() { return mesh_.world().all_gather(all_, mine_, "profile"); }
  void make_message(int64_t values) {
    mine_ = at::ones({values}, at::TensorOptions(dtype_));
    all_ = at::ones({values * mesh_.world_size()}, at::TensorOptions(dtype_));
  }

  /// So that passes take a while, and the message twice as long. Collective.
  void size_message() {
    constexpr double kPassSeconds = 0.05;
    constexpr int64_t kFirst = 1 << 20, kMost = 64 << 20, kMostMicroBatches = 200;
    const auto slowest = [this](const std::function<void()>& work) {
      work();  // warms up
      return largest_over_ranks(together(work), mesh_.world(), "profile");
    };
    make_message(kFirst);
    const double pass_seconds = slowest([this] { pass(); });
    micro_batches_ =
        std::clamp<int64_t>(static_cast<int64_t>(kPassSeconds / pass_seconds), 1, kMostMicroBatches);
    const double times =
        2 * pass_seconds * static_cast<double>(micro_batches_) / slowest([this] { gather().wait(); });
    make_message(std::clamp(static_cast<int64_t>(times * kFirst), kFirst / 64, kMost));
    gather().wait();
  }

  mesh::Mesh& mesh_;
  MeasuredModel model_;
  eager::DeviceInput::Input batch_;
  at::ScalarType dtype_;
  at::Tensor mine_, all_;
  int64_t micro_batches_ = 1;  // of a pass
};

}  // namespace

Slowdown slowdown_of(const Overlap& overlap) {
  Slowdown found;
  found.compute = std::max(1.0, overlap.pass / overlap.pass_alone);
  // Alone, the message would have needed `beside` for what it did beside the pass.
  const double beside = overlap.message_alone - (overlap.message - overlap.pass);
  const bool ended_first = overlap.message <= overlap.pass || beside <= 0;
  found.link = std::max(1.0, ended_first ? overlap.message / overlap.message_alone : overlap.pass / beside);
  return found;
}

Slowdown measure_slowdown(const PassSettings& passes, const LinkSettings& links) {
  if (links.ranks < 2 || links.shared_memory) return {};
  const auto count = static_cast<size_t>(links.ranks);
  std::vector<std::vector<Slowdown>> of_ranks(count);
  const mesh::ThreadRanks ranks{.axes = {{"host", links.ranks}},
                                .timeout = links.timeout,
                                .shared_memory = false,
                                .threads = passes.threads};
  mesh::run_on_thread_ranks(ranks, [&](mesh::Mesh& mesh) {
    at::set_num_threads(static_cast<int>(passes.threads));
    OverlapRank rank(passes, links, mesh);
    QuietCores cores(passes.patience, largest_of(mesh.world()));
    for (int64_t round = 0; round < passes.rounds; ++round) {
      const Overlap overlap = cores.measured([&] { return rank.measure(); });
      of_ranks[static_cast<size_t>(mesh.rank())].push_back(slowdown_of(overlap));
    }
  });
  std::vector<double> compute, link;
  for (const auto& rounds : of_ranks) {
    for (const Slowdown& found : rounds) {
      compute.push_back(found.compute);
      link.push_back(found.link);
    }
  }
  return {median(compute), median(link)};
}

}  // namespace tessera::profile
