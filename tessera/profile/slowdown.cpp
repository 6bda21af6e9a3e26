// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/slowdown.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

#include "tessera/base/clock.h"
#include "tessera/base/median.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/over_ranks.h"
#include "tessera/profile/quiet_cores.h"
#include "tessera/profile/rank_thread.h"

namespace tessera::profile {
namespace {

using Clock = std::chrono::steady_clock;

/// One rank's micro-batches, without peers, and its messages, with them.
class OverlapRank {
 public:
  OverlapRank(const PassSettings& passes, const LinkSettings& links, mesh::Mesh& mesh)
      : mesh_(mesh),
        model_(measured_recipe(passes.recipe, nullptr), {.tensor = 1}),
        largest_(random_input(passes.recipe.model, std::ranges::max(passes.batches))),
        smallest_(random_input(passes.recipe.model, std::ranges::min(passes.batches))),
        dtype_(links.dtype),
        wire_(links.wire) {
    constexpr size_t kBlock = 1;  // behind the stem
    const int64_t ranks = mesh.world_size();
    const int64_t values = (model_.values_of(model_.plan().units[kBlock]) + ranks - 1) / ranks;
    block_ = Message(values, ranks, dtype_);
    summed_ = at::ones({values}, at::kFloat);
    size_long_message();
    size_passes();
  }

  /// A long message beside a pass. Collective.
  Overlap overlap() {
    Overlap overlap;
    overlap.pass_alone = together([&] { compute(largest_, micro_batches_); });
    overlap.message_alone = together([&] { gather(long_).wait(); });
    mesh_.world().barrier("profile");
    const auto start = Clock::now();
    mesh::Pending message = gather(long_);
    compute(largest_, micro_batches_);
    overlap.pass = seconds_since(start);
    message.wait();
    overlap.message = seconds_since(start);
    return overlap;
  }

  /// A message of a block beside so many micro-batches that it ends before them, if that takes no more than
  /// kMostSeconds. Means of kMessages; micro-batches alone take turns with them, since a machine is not as
  /// fast in one second as in the next. Collective.
  Overlap overlap_of_block() {
    const double gathers = together([&] { gather(block_).wait(); }),
                 sums = together([&] { sum(block_).wait(); });
    Overlap all{.message_alone = (gathers + sums) / 2};
    mesh_.world().barrier("profile");
    for (int64_t i = 0; i < kMessages; ++i) {
      const auto start = Clock::now();
      compute(smallest_, passes_of_message_);
      all.pass_alone += seconds_since(start) / kMessages;
      const auto middle = Clock::now();
      mesh::Pending message = i % 2 == 0 ? gather(block_) : sum(block_);
      compute(smallest_, passes_of_message_);
      const bool has_ended = message.advance();
      const double pass = seconds_since(middle);
      message.wait();
      all.pass += pass / kMessages;
      all.message += (has_ended ? pass : seconds_since(middle)) / kMessages;
    }
    return all;
  }

 private:
  struct Message {
    Message() = default;
    Message(int64_t values, int64_t ranks, at::ScalarType dtype)
        : mine(at::ones({values}, at::TensorOptions(dtype))),
          all(at::ones({values * ranks}, at::TensorOptions(dtype))) {}
    at::Tensor mine, all;
  };

  double together(const std::function<void()>& work) {
    mesh_.world().barrier("profile");
    const auto start = Clock::now();
    work();
    return seconds_since(start);
  }
  /// The second time, of the slowest rank. Collective.
  double slowest(const std::function<void()>& work) {
    together(work);
    return largest_over_ranks(together(work), mesh_.world(), "profile");
  }
  void compute(const eager::DeviceInput::Input& batch, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      model_.micro_batch(batch, /*last=*/true);
      model_.forget_gradients();
    }
  }
  mesh::Pending gather(Message& of) { return mesh_.world().all_gather(of.all, of.mine, "profile"); }
  mesh::Pending sum(Message& of) { return mesh_.world().reduce_scatter(summed_, of.all, wire_, "profile"); }

  /// So that the pass takes a while, and the message twice as long. Collective.
  void size_long_message() {
    constexpr double kPassSeconds = 0.05;
    constexpr int64_t kFirst = 1 << 20, kMost = 64 << 20, kMostMicroBatches = 200;
    const int64_t ranks = mesh_.world_size();
    long_ = Message(kFirst, ranks, dtype_);
    const double pass_seconds = slowest([this] { compute(largest_, 1); });
    micro_batches_ =
        std::clamp<int64_t>(static_cast<int64_t>(kPassSeconds / pass_seconds), 1, kMostMicroBatches);
    const double times =
        2 * pass_seconds * static_cast<double>(micro_batches_) / slowest([this] { gather(long_).wait(); });
    const auto values = static_cast<int64_t>(std::min(times * kFirst, static_cast<double>(kMost)));
    long_ = Message(std::max(values, kFirst / 64), ranks, dtype_);
    gather(long_).wait();
  }

  /// Collective.
  void size_passes() {
    constexpr double kLonger = 4;  // than the message alone
    const double message =
        std::max(slowest([this] { gather(block_).wait(); }), slowest([this] { sum(block_).wait(); }));
    const double pass = slowest([this] { compute(smallest_, 1); });
    const double seconds = std::min(kLonger * message, kMostSeconds);
    passes_of_message_ = static_cast<int64_t>(seconds / pass) + 1;
  }

  static constexpr int64_t kMessages = 8;  // half of them gathers
  static constexpr double kMostSeconds = 0.2;

  mesh::Mesh& mesh_;
  MeasuredModel model_;
  eager::DeviceInput::Input largest_, smallest_;
  at::ScalarType dtype_, wire_;
  Message long_, block_;
  at::Tensor summed_;          // of block_
  int64_t micro_batches_ = 1;  // beside the long message
  int64_t passes_of_message_ = 1;
};

/// What the ranks found, by round.
struct BlockRounds {
  std::vector<double> link;          // link_slowdown_of()
  std::vector<double> lost, beside;  // of a block's message
};

}  // namespace

double seconds_beside(const Overlap& overlap) {
  return std::max(overlap.message_alone - std::max(overlap.message - overlap.pass, 0.0), 0.0);
}

double link_slowdown_of(const Overlap& overlap) {
  const double beside = seconds_beside(overlap);
  const bool ended_first = overlap.message <= overlap.pass || beside <= 0;
  return std::max(1.0, ended_first ? overlap.message / overlap.message_alone : overlap.pass / beside);
}

Slowdown slowdown_of(double link, double lost) {
  constexpr double kMostLost = 0.9;  // of a second beside a message
  Slowdown found;
  found.link = std::max(link, lost / kMostLost);
  found.compute = 1 / (1 - std::max(lost, 0.0) / found.link);
  return found;
}

Slowdown measure_slowdown(const PassSettings& passes, const LinkSettings& links) {
  if (links.ranks < 2 || links.shared_memory) return {};
  const auto count = static_cast<size_t>(links.ranks);
  std::vector<BlockRounds> of_ranks(count);
  const mesh::ThreadRanks ranks{.axes = {{"host", links.ranks}},
                                .timeout = links.timeout,
                                .shared_memory = false,
                                .threads = passes.threads};
  mesh::run_on_thread_ranks(ranks, [&](mesh::Mesh& mesh) {
    const RankThread thread(passes.threads);
    OverlapRank rank(passes, links, mesh);
    QuietCores cores(passes.patience, largest_of(mesh.world()));
    BlockRounds& found = of_ranks[static_cast<size_t>(mesh.rank())];
    for (int64_t round = 0; round < passes.rounds; ++round) {
      found.link.push_back(link_slowdown_of(cores.measured([&] { return rank.overlap(); })));
      const Overlap block = cores.measured([&] { return rank.overlap_of_block(); });
      found.lost.push_back(block.pass - block.pass_alone);
      found.beside.push_back(seconds_beside(block));
    }
  });
  BlockRounds all;
  for (const BlockRounds& one : of_ranks) {
    for (const auto list : {&BlockRounds::link, &BlockRounds::lost, &BlockRounds::beside})
      (all.*list).insert((all.*list).end(), (one.*list).begin(), (one.*list).end());
  }
  const double beside = median(all.beside);
  return slowdown_of(median(all.link), beside > 0 ? median(all.lost) / beside : 0);
}

}  // namespace tessera::profile
