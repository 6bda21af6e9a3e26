// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/busy_ranks_slowdown.h"

#include <algorithm>

#include "tessera/base/clock.h"
#include "tessera/base/median.h"
#include "tessera/base/on_threads.h"
#include "tessera/launch/launch.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/meeting.h"
#include "tessera/profile/quiet_cores.h"
#include "tessera/profile/rank_thread.h"

namespace tessera::profile {
namespace {

constexpr int64_t kMostAlone = 4;     // ranks that are measured alone
constexpr double kAllSeconds = 0.05;  // that micro-batches of one size take together
constexpr int64_t kMostOfBatch = 50;

/// One rank, on its thread.
class ComparingRank {
 public:
  ComparingRank(const PassSettings& settings, int64_t rank, Meeting& meeting)
      : settings_(settings),
        rank_(rank),
        meeting_(meeting),
        model_(measured_recipe(settings.recipe, nullptr), {.tensor = 1}) {
    const auto [least, most] = std::ranges::minmax(settings.batches);
    for (const int64_t size : {least, most}) batches_.push_back({random_input(settings.recipe.model, size)});
  }

  /// By round; empty for ranks that were not measured alone.
  std::vector<double> run() {
    QuietCores cores(settings_.patience, [this](double mine) { return meeting_.largest(mine); });
    for (Batch& batch : batches_) {
      seconds_of(batch);  // warms up
      const double seconds = meeting_.largest(seconds_of(batch));
      batch.repeats = std::clamp<int64_t>(static_cast<int64_t>(kAllSeconds / seconds), 1, kMostOfBatch);
    }
    std::vector<double> slowdowns;
    for (int64_t round = 0; round < settings_.rounds; ++round) {
      const double slowdown = cores.measured([this] { return compare(); });
      if (is_alone_once()) slowdowns.push_back(slowdown);
    }
    return slowdowns;
  }

 private:
  struct Batch {
    eager::DeviceInput::Input input;
    int64_t repeats = 1;
  };

  int64_t ranks_alone() const { return std::min(settings_.ranks, kMostAlone); }
  bool is_alone_once() const { return rank_ < ranks_alone(); }

  double seconds_of(const Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < batch.repeats; ++i) {
      model_.micro_batch(batch.input, /*last=*/true);
      model_.forget_gradients();
    }
    return seconds_since(start);
  }
  double seconds_of_all() {
    double seconds = 0;
    for (const Batch& batch : batches_) seconds += seconds_of(batch);
    return seconds;
  }

  double compare() {
    double alone = 1;
    for (int64_t rank = 0; rank < ranks_alone(); ++rank) {
      meeting_.wait();
      if (rank == rank_) alone = seconds_of_all();
    }
    meeting_.wait();
    return seconds_of_all() / alone;
  }

  const PassSettings& settings_;
  const int64_t rank_;
  Meeting& meeting_;
  MeasuredModel model_;
  std::vector<Batch> batches_;
};

}  // namespace

double measure_busy_ranks_slowdown(const PassSettings& settings) {
  if (settings.ranks < 2) return 1;
  Meeting meeting(settings.ranks);
  std::vector<std::vector<double>> of_ranks(static_cast<size_t>(settings.ranks));
  run_on_threads(settings.ranks, [&](int64_t rank) {
    const Attendance attendance(meeting);
    launch::stay_on_own_cores(rank, settings.ranks, settings.threads);
    const RankThread thread(settings.threads);
    of_ranks[static_cast<size_t>(rank)] = ComparingRank(settings, rank, meeting).run();
  });
  std::vector<double> slowdowns;
  for (const auto& rounds : of_ranks) slowdowns.insert(slowdowns.end(), rounds.begin(), rounds.end());
  return std::max(1.0, median(slowdowns));
}

}  // namespace tessera::profile
