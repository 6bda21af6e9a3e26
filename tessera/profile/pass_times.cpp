// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/pass_times.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tessera/arch/model.h"
#include "tessera/arch/specs.h"
#include "tessera/base/error.h"
#include "tessera/base/interpolated_quantile.h"
#include "tessera/base/median.h"
#include "tessera/base/on_threads.h"
#include "tessera/base/steady_mean.h"
#include "tessera/eager/device.h"
#include "tessera/launch/launch.h"
#include "tessera/mesh/thread_ranks.h"
#include "tessera/profile/head_start.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/meeting.h"
#include "tessera/profile/moment.h"
#include "tessera/profile/quiet_cores.h"
#include "tessera/profile/rank_thread.h"
#include "tessera/profile/unit_passes.h"

namespace tessera::profile {
namespace {

constexpr int64_t kMoreBlocks = 5;     // of the deeper model whose replays are measured as well
constexpr double kPeerSeconds = 0.05;  // of short passes with peers that follow each other
constexpr int64_t kMostRepeats = 8;
constexpr int64_t kMostAttempts = 3;    // at passes whose head start was too short
constexpr double kSumHeadStart = 0.01;  // seconds
constexpr int64_t kSumRounds = 3;       // for each of the others: small differences of long passes
constexpr int64_t kCacheBytes = int64_t{64} << 20, kDeviceCacheBytes = int64_t{256} << 20;  // more than fits

using planner::UnitTimes;

/// One entry of PassTimes::units, in their order.
struct UnitKey {
  size_t place = 0;  // of the first unit of this kind
  std::string kind;
  int64_t tensor = 1, batch = 1;
  plan::Recompute recompute = plan::Recompute::kNone;
  auto operator<=>(const UnitKey&) const = default;
};

/// What the rounds found.
struct Found {
  std::map<UnitKey, std::vector<UnitPass>> units, with_peers;
  std::map<UnitKey, double> values;    // that a rank holds of a unit in with_peers
  std::map<UnitKey, double> replayed;  // UnitTimes::replayed, of GPUs alone
  /// Seconds for a value: of a backward pass whose gradients stay as they are made, of a first and of a later
  /// micro-batch's; of added sums and updates.
  std::vector<double> as_made, first, later, add_sum, optimizer;
  int64_t measurements = 0, slowed = 0;              // passes, of which something else slowed a core
  std::vector<std::vector<UnitPass>> micro_batches;  // of every round, in the same order on all ranks

  void add(const Found& other) {
    for (const auto list : {&Found::units, &Found::with_peers}) {
      for (const auto& [key, passes] : other.*list) {
        std::vector<UnitPass>& all = (this->*list)[key];
        all.insert(all.end(), passes.begin(), passes.end());
      }
    }
    values.insert(other.values.begin(), other.values.end());
    replayed.insert(other.replayed.begin(), other.replayed.end());
    measurements += other.measurements;
    slowed += other.slowed;
    for (const auto list :
         {&Found::as_made, &Found::first, &Found::later, &Found::add_sum, &Found::optimizer})
      (this->*list).insert((this->*list).end(), (other.*list).begin(), (other.*list).end());
  }
};

int64_t values_of_largest_unit(const arch::ModelConfig& model) {
  std::map<std::string, int64_t> values;
  for (const arch::ParameterSpec& spec : arch::parameters(model)) values[spec.unit] += spec.numel();
  int64_t most = 0;
  for (const auto& [unit, count] : values) most = std::max(most, count);
  return most;
}

/// One rank, on its thread.
class MeasuringRank {
 public:
  using Input = eager::DeviceInput::Input;

  /// `peers`: null where none are to be measured.
  MeasuringRank(const PassSettings& settings, const recipe::Recipe& recipe,
                const std::vector<std::string>& kinds, Meeting& meeting, mesh::Mesh* peers)
      : settings_(settings), recipe_(recipe), kinds_(kinds), meeting_(meeting), peers_(peers) {
    if (settings.on.device.is_cpu())
      cores_.emplace(settings.patience, [this](double mine) { return meeting_.largest(mine); });
    for (const int64_t size : settings.batches)
      batches_.push_back(random_input(recipe.model, size, settings.on.device));
  }

  Found run() {
    std::vector<MeasuredLayout> all;
    for (const int64_t tensor : settings_.tensor)
      std::ranges::move(layouts_of(tensor), std::back_inserter(all));
    if (fit_at_once(all)) {
      measure(all);
    } else {
      for (const int64_t tensor : settings_.tensor) measure(layouts_of(tensor));
    }
    measure_sums_and_updates();
    measure_added_sums();
    if (cores_) {
      found_.measurements = cores_->measurements();
      found_.slowed = cores_->slowed();
    }
    return std::move(found_);
  }

 private:
  /// What `work` returns, which all ranks begin together.
  template <class Work>
  auto together(const Work& work) {
    const auto begun = [&] {
      meeting_.wait();
      return work();
    };
    return cores_ ? cores_->measured(begun) : begun();
  }

  std::vector<MeasuredLayout> layouts_of(int64_t tensor) const {
    std::vector<plan::Recompute> modes = {plan::Recompute::kNone, plan::Recompute::kAll};
    if (tensor > 1) modes.push_back(plan::Recompute::kKeepSums);  // there are none to keep otherwise
    std::vector<MeasuredLayout> layouts;
    for (const plan::Recompute mode : modes) {
      layouts.push_back({.tensor = tensor, .recompute = mode});
      if (peers_ != nullptr && tensor > 1 && settings_.ranks % tensor == 0)
        layouts.push_back({.tensor = tensor, .recompute = mode, .peers = peers_});
    }
    return layouts;
  }

  /// The models of these layouts, on all ranks.
  bool fit_at_once(const std::vector<MeasuredLayout>& layouts) const {
    constexpr double kMost = 4.0 * (1 << 30),
                     kBytes = 12;  // of a value: fp32, in the compute dtype, gradients
    double values = 0;
    for (const MeasuredLayout& layout : layouts)
      values += static_cast<double>(arch::parameter_count(recipe_.model) / layout.tensor);
    return kBytes * values * static_cast<double>(settings_.ranks) <= kMost;
  }

  /// All by turns within a round: the machine may be faster in one minute than in the next.
  void measure(const std::vector<MeasuredLayout>& layouts) {
    std::vector<std::unique_ptr<MeasuredModel>> models;
    for (const MeasuredLayout& layout : layouts)
      models.push_back(std::make_unique<MeasuredModel>(recipe_, layout, settings_.on));
    std::map<std::pair<size_t, int64_t>, int64_t> repeats;  // of passes with peers, by model and batch
    for (int64_t round = 0; round <= settings_.rounds; ++round) {
      for (const Input& input : batches_) {
        for (size_t i = 0; i < models.size(); ++i) {
          if (layouts[i].peers == nullptr) {
            measure_alone(*models[i], layouts[i], input, round);
          } else {
            measure_with_peers(*models[i], layouts[i], input, round, repeats[{i, input.batch.size}]);
          }
        }
      }
    }
    const bool replays =
        !settings_.on.device.is_cpu() && settings_.recipe.run.cuda_graphs != recipe::CudaGraphs::kOff;
    for (size_t i = 0; replays && i < models.size(); ++i) {
      if (layouts[i].tensor == 1) measure_replays(*models[i], layouts[i].recompute);
    }
  }

  void measure_alone(MeasuredModel& model, const MeasuredLayout& layout, const Input& input, int64_t round) {
    const std::vector<UnitPass> passes = together([&] { return undelayed_pass(model, input); });
    if (round == 0) return;
    note(passes, model.plan(), layout, input.batch.size);
    found_.micro_batches.push_back(passes);
  }

  /// `repeats`: how many passes, found in round 0.
  void measure_with_peers(MeasuredModel& model, const MeasuredLayout& layout, const Input& input,
                          int64_t round, int64_t& repeats) {
    const auto passes =
        together([&] { return passes_with_peers(model, input, std::max<int64_t>(repeats, 1)); });
    if (round == 0) {
      repeats = repeats_of(passes.front());
      return;
    }
    for (const std::vector<UnitPass>& pass : passes) note_with_peers(pass, model, layout, input.batch.size);
  }

  /// Again while the device had to wait for the host.
  static std::vector<UnitPass> undelayed_pass(MeasuredModel& model, const Input& input) {
    std::vector<UnitPass> passes;
    for (int64_t attempt = 0; attempt < kMostAttempts; ++attempt) {
      passes = model.micro_batch(input, /*last=*/true);
      model.forget_gradients();
      if (!model.waited_for_host()) break;
    }
    return passes;
  }

  /// One right after the other, as in a training, without sums of gradients.
  static std::vector<std::vector<UnitPass>> passes_with_peers(MeasuredModel& model, const Input& input,
                                                              int64_t count) {
    std::vector<std::vector<UnitPass>> all;
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(model.micro_batch(input, /*last=*/false));
      model.forget_gradients();
    }
    return all;
  }

  /// Passes that take kPeerSeconds together. The same on all ranks.
  int64_t repeats_of(const std::vector<UnitPass>& pass) {
    double seconds = 0;
    for (const UnitPass& unit : pass) seconds += unit.forward + unit.backward;
    return std::clamp<int64_t>(std::llround(kPeerSeconds / meeting_.largest(seconds)), 1, kMostRepeats);
  }

  /// Adds the units that are cut.
  void note_with_peers(const std::vector<UnitPass>& passes, const MeasuredModel& model,
                       const MeasuredLayout& layout, int64_t batch) {
    for (size_t i = 0; i < passes.size(); ++i) {
      const UnitKey key = key_of(model.plan(), i, batch);
      if (key.tensor == 1 || key.recompute != layout.recompute) continue;
      found_.with_peers[key].push_back(passes[i]);
      found_.values.emplace(key, model.values_of(model.plan().units[i]));
    }
  }

  /// Requires: measured rounds of `model`.
  void measure_replays(MeasuredModel& model, plan::Recompute mode) {
    recipe::Recipe recipe = recipe_;
    recipe.model = model_of_few_blocks(settings_.recipe.model, nullptr, kMoreBlocks);
    const auto added = static_cast<double>(std::ssize(arch::unit_names(recipe.model)) - std::ssize(kinds_));
    std::unique_ptr<MeasuredModel> deeper;
    if (added > 0)
      deeper = std::make_unique<MeasuredModel>(recipe, MeasuredLayout{.recompute = mode}, settings_.on);
    for (Input& input : batches_) {
      const std::vector<double> few = model.replayed_passes(input, settings_.rounds);
      if (few.empty()) return;
      const std::vector<double> more =
          deeper ? deeper->replayed_passes(input, settings_.rounds) : std::vector<double>();
      const double block = more.empty() ? 0 : (steady_mean(more) - steady_mean(few)) / added;
      note_replayed(model.plan(), input.batch.size, steady_mean(few), block);
    }
  }

  UnitKey key_of(const plan::Plan& plan, size_t unit, int64_t batch) const {
    const auto place = static_cast<size_t>(std::ranges::find(kinds_, kinds_[unit]) - kinds_.begin());
    const plan::UnitPlan& of = plan.units[unit];
    return {place, kinds_[unit], of.layout.tensor, batch, of.recompute};
  }

  /// `pass`, `block`: seconds of a replayed pass, and of one of its ordinary blocks; 0: not known.
  void note_replayed(const plan::Plan& plan, int64_t batch, double pass, double block) {
    double all = 0, blocks = 0, replayed_blocks = 0;  // seconds of units that were queued kernel by kernel
    const auto is_block = [&](size_t i) { return block > 0 && kinds_[i] == kinds_[1]; };
    for (size_t i = 0; i < kinds_.size(); ++i) {
      std::vector<double> seconds;
      for (const UnitPass& one : found_.units.at(key_of(plan, i, batch)))
        seconds.push_back(one.forward + one.backward);
      const double of_unit = steady_mean(seconds);
      all += of_unit;
      if (!is_block(i)) continue;
      blocks += of_unit;
      replayed_blocks += block;
    }
    double of_blocks = pass / all, of_others = pass / all;
    if (pass > replayed_blocks && blocks > 0 && blocks < all) {
      of_blocks = replayed_blocks / blocks;
      of_others = (pass - replayed_blocks) / (all - blocks);
    }
    for (size_t i = 0; i < kinds_.size(); ++i)
      found_.replayed.emplace(key_of(plan, i, batch), is_block(i) ? of_blocks : of_others);
  }

  /// Adds the units that are laid out as `layout` says.
  void note(const std::vector<UnitPass>& passes, const plan::Plan& plan, const MeasuredLayout& layout,
            int64_t batch) {
    TESSERA_CHECK_EQ(passes.size(), kinds_.size());
    for (size_t i = 0; i < passes.size(); ++i) {
      const UnitKey key = key_of(plan, i, batch);
      if (key.tensor == layout.tensor && key.recompute == layout.recompute)
        found_.units[key].push_back(passes[i]);
    }
  }

  /// A micro-batch behind another, so that caches hold the same for all that are compared.
  static std::vector<UnitPass> warm_pass(MeasuredModel& model, const Input& input, bool last) {
    model.micro_batch(input, /*last=*/true);
    model.forget_gradients();
    return model.micro_batch(input, last);
  }

  static double backward_seconds(const std::vector<UnitPass>& passes) {
    double seconds = 0;
    for (const UnitPass& pass : passes) seconds += pass.backward;
    return seconds;
  }

  void measure_sums_and_updates() {
    MeasuredModel model(recipe_, {.with_optimizer = true}, settings_.on);
    const auto values = static_cast<double>(model.values());
    const Input& input = batches_.front();
    struct Round {
      double as_made, update, first, later;
    };
    const auto measure_round = [&]() -> Round {
      Round found{};
      found.as_made = backward_seconds(warm_pass(model, input, /*last=*/true));
      meeting_.wait();
      found.update = std::max(0.0, model.update() - settings_.step_end);
      meeting_.wait();
      found.first = backward_seconds(warm_pass(model, input, /*last=*/false));
      const double second = backward_seconds(model.micro_batch(input, /*last=*/false));
      found.later = (second + backward_seconds(model.micro_batch(input, /*last=*/true))) / 2;
      model.forget_gradients();
      return found;
    };
    for (int64_t round = 0; round <= kSumRounds * settings_.rounds; ++round) {
      const Round found = together(measure_round);
      if (round == 0) continue;
      found_.optimizer.push_back(found.update / values);
      found_.as_made.push_back(found.as_made / values);
      found_.first.push_back(found.first / values);
      found_.later.push_back(found.later / values);
    }
  }

  /// Sums of a block that a message has just brought, added to those of earlier micro-batches, which caches
  /// have lost since then.
  void measure_added_sums() {
    const at::NoGradGuard no_grad;
    const c10::Device device = settings_.on.device;
    const int64_t values = values_of_largest_unit(recipe_.model) / settings_.ranks + 1;
    const int64_t bytes = device.is_cpu() ? kCacheBytes : kDeviceCacheBytes;
    std::vector<at::Tensor> earlier;
    for (int64_t i = 0; i <= bytes / 4 / values; ++i)
      earlier.push_back(at::zeros({values}, at::TensorOptions(device)));
    const at::Tensor sum = at::empty({values}, at::TensorOptions(device));
    HeadStart head_start(device);
    const auto add_all = [&] {
      eager::wait_for(device);
      head_start.queue(kSumHeadStart);
      std::vector<std::pair<Moment, Moment>> sums;
      for (const at::Tensor& held : earlier) {
        sum.fill_(1);
        Moment begin(device);
        at::Tensor(held).add_(sum);
        sums.emplace_back(std::move(begin), Moment(device));
      }
      eager::wait_for(device);
      double seconds = 0;
      for (const auto& [begin, end] : sums) seconds += begin.seconds_to(end);
      return seconds / static_cast<double>(values * std::ssize(earlier));
    };
    for (int64_t round = 0; round <= settings_.rounds; ++round) {
      const double seconds = together(add_all);
      if (round > 0) found_.add_sum.push_back(seconds);
    }
  }

  const PassSettings& settings_;
  const recipe::Recipe& recipe_;
  const std::vector<std::string>& kinds_;
  Meeting& meeting_;
  mesh::Mesh* const peers_;
  std::optional<QuietCores> cores_;  // of a CPU
  std::vector<Input> batches_;
  Found found_;
};

/// (third quartile - first) / median.
double relative_spread(const std::vector<double>& values) {
  const double middle = median(values);
  return middle > 0 ? (interpolated_quantile(values, 0.75) - interpolated_quantile(values, 0.25)) / middle
                    : 0;
}

double mean_of(const std::vector<UnitPass>& passes, double UnitPass::*seconds) {
  std::vector<double> values;
  for (const UnitPass& pass : passes) values.push_back(pass.*seconds);
  return steady_mean(values);
}

UnitTimes times_of(const UnitKey& key, const std::vector<UnitPass>& passes, double replayed) {
  std::vector<double> both;
  for (const UnitPass& pass : passes) both.push_back(pass.forward + pass.backward);
  return {key.kind,
          key.tensor,
          key.batch,
          key.recompute,
          mean_of(passes, &UnitPass::forward),
          mean_of(passes, &UnitPass::backward),
          relative_spread(both),
          replayed};
}

/// What `passes` with peers take longer than those of `unit` without. `widening`: seconds in which they write
/// gradients in fp32, which those without leave as they are made.
planner::PeerTimes peers_of(const UnitTimes& unit, const std::vector<UnitPass>& passes, double widening,
                            const recipe::Recipe& recipe) {
  return {.transport = recipe.run.shared_memory ? "shared memory" : "TCP",
          .pieces = recipe::pieces_over_network(recipe.parallel),
          .keep_gathered = recipe.parallel.keep_gathered,
          .forward = std::max(0.0, mean_of(passes, &UnitPass::forward) - unit.forward),
          .backward = std::max(0.0, mean_of(passes, &UnitPass::backward) - unit.backward - widening)};
}

template <class Config>
bool keep_few_blocks(arch::ModelConfig* model, int64_t most) {
  auto* config = std::get_if<Config>(&model->of);
  if (config != nullptr) config->depth = std::min(config->depth, most);
  return config != nullptr;
}

}  // namespace

arch::ModelConfig model_of_few_blocks(const arch::ModelConfig& model, std::vector<std::string>* kinds,
                                      int64_t most) {
  arch::ModelConfig few = model;
  if (!keep_few_blocks<arch::VitConfig>(&few, most)) keep_few_blocks<arch::ResMlpConfig>(&few, most);
  if (kinds == nullptr) return few;
  constexpr size_t kAtEnd = 2;  // the last block and the head
  const std::vector<std::string> whole = planner::unit_kinds(model);
  const size_t units = arch::unit_names(few).size();
  for (size_t i = 0; i < units; ++i)
    kinds->push_back(whole[i + kAtEnd < units ? i : whole.size() - units + i]);
  return few;
}

namespace {

/// Of the groups in which ranks of this host exchange activations; none where there are no such.
std::vector<mesh::Span> spans_of_peers(const PassSettings& settings, const recipe::Recipe& recipe) {
  std::set<mesh::Span> spans;
  for (const int64_t tensor : settings.tensor) {
    if (settings.with_peers && tensor > 1 && settings.ranks % tensor == 0)
      std::ranges::copy(spans_with_peers(recipe, tensor, settings.ranks), std::inserter(spans, spans.end()));
  }
  return {spans.begin(), spans.end()};
}

}  // namespace

PassTimes measure_passes(const PassSettings& settings) {
  std::vector<std::string> kinds;
  const recipe::Recipe recipe = measured_recipe(settings.recipe, &kinds);
  std::vector<Found> of_ranks(static_cast<size_t>(settings.ranks));
  Meeting meeting(settings.ranks);
  const auto measure = [&](int64_t rank, mesh::Mesh* peers) {
    const Attendance attendance(meeting);
    const RankThread thread(settings.threads);
    MeasuringRank measuring(settings, recipe, kinds, meeting, peers);
    of_ranks[static_cast<size_t>(rank)] = measuring.run();
  };
  if (!settings.on.device.is_cpu()) {
    TESSERA_CHECK_EQ(settings.ranks, 1);
    measure(0, nullptr);  // this thread has chosen the device and its stream
  } else if (const std::vector<mesh::Span> spans = spans_of_peers(settings, recipe); spans.empty()) {
    run_on_threads(settings.ranks, [&](int64_t rank) {
      launch::stay_on_own_cores(rank, settings.ranks, settings.threads);
      measure(rank, nullptr);
    });
  } else {
    mesh::run_on_thread_ranks({.axes = {{"host", settings.ranks}},
                               .spans = spans,
                               .timeout = recipe::timeout_of(recipe.run),
                               .shared_memory = recipe.run.shared_memory,
                               .threads = settings.threads},
                              [&](mesh::Mesh& mesh) {
                                mesh.world().barrier("profile");  // all are there: a Meeting waits for ever
                                measure(mesh.rank(), &mesh);
                              });
  }
  Found found;
  std::vector<std::vector<std::vector<UnitPass>>> micro_batches;
  for (Found& rank : of_ranks) {
    found.add(rank);
    micro_batches.push_back(std::move(rank.micro_batches));
  }
  PassTimes times;
  times.lag = lag_of(micro_batches);
  const double as_made = steady_mean(found.as_made);
  times.widen_seconds = std::max(0.0, steady_mean(found.first) - as_made);
  times.accumulate_seconds = std::max(0.0, steady_mean(found.later) - as_made);
  times.add_sum_seconds = steady_mean(found.add_sum);
  times.optimizer_seconds = steady_mean(found.optimizer);
  for (const auto& [key, passes] : found.units) {
    const auto replayed = found.replayed.find(key);
    UnitTimes unit = times_of(key, passes, replayed == found.replayed.end() ? 1 : replayed->second);
    if (const auto peers = found.with_peers.find(key); peers != found.with_peers.end())
      unit.peers = peers_of(unit, peers->second, times.widen_seconds * found.values.at(key), recipe);
    times.units.push_back(std::move(unit));
  }
  if (found.measurements > 0)
    times.slowed = static_cast<double>(found.slowed) / static_cast<double>(found.measurements);
  return times;
}

}  // namespace tessera::profile
