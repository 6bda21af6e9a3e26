// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/evaluation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/broken_samples.h"
#include "tessera/loop/backend.h"

namespace tessera::loop {
namespace {

/// A label's name; the model may have more classes than the data.
std::string class_name(const data::Source& source, int64_t label) {
  const auto index = static_cast<size_t>(label);
  return index < source.classes().size() ? source.classes()[index] : std::to_string(label);
}

}  // namespace

monitor::PredictionSample picture(const data::Source& source, int64_t index, int64_t channels, int64_t truth,
                                  const monitor::Judgement& said) {
  const data::Image image = source.read(index, channels);
  return {image.width,
          image.height,
          image.channels,
          image.pixels,
          class_name(source, truth),
          class_name(source, said.prediction),
          said.confidence};
}

std::vector<int64_t> spread_samples(const data::Source& source, int64_t count) {
  constexpr uint64_t kSeed = 0x5A3B1E;  // fixed: every evaluation of a run shows the same images
  struct Ranked {
    int64_t label;
    uint64_t hash;
    int64_t index;
    auto operator<=>(const Ranked&) const = default;
  };
  std::vector<Ranked> ranked;
  for (int64_t i = 0; i < source.size(); ++i) {
    if (source.label(i) >= 0)
      ranked.push_back({source.label(i), random_key(kSeed, static_cast<uint64_t>(i)), i});
  }
  std::ranges::sort(ranked);
  const auto all = static_cast<int64_t>(ranked.size());
  count = std::min(count, all);
  std::vector<std::pair<uint64_t, int64_t>> drawn;
  for (int64_t k = 0; k < count; ++k) {  // the middle of each of `count` equal parts
    const Ranked& one = ranked[static_cast<size_t>((2 * k + 1) * all / (2 * count))];
    drawn.emplace_back(one.hash, one.index);
  }
  std::ranges::sort(drawn);
  std::vector<int64_t> samples;
  for (const auto& [hash, index] : drawn) samples.push_back(index);
  return samples;
}

namespace {

constexpr size_t kColumns = 8;  // of a row of Shown: a mistake's seven values, and whether there is one

/// Counts on the host what Evaluator::logits() gives.
class HostJudge final : public Judge {
 public:
  HostJudge(Evaluator& evaluator, const data::Source& source, const EvaluateOptions& options)
      : evaluator_(evaluator),
        options_(options),
        worst_(static_cast<size_t>(options.keep_mistakes)),
        shown_(source, options) {}

  void update(const data::Batch& batch, bool has_samples) override {
    const std::vector<float> logits = evaluator_.logits(batch);
    if (!has_samples) return;
    channels_ = batch.channels;
    classes_ = logits.size() / static_cast<size_t>(batch.size);
    if (!counts_) counts_.emplace(static_cast<int64_t>(classes_), options_.most_confusion_classes);
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      if (batch.labels[i] < 0) {
        counts_->update_broken();
        continue;
      }
      const auto sample = static_cast<int64_t>(batch.samples[i]);
      const auto said = monitor::judge(std::span(logits).subspan(i * classes_, classes_), batch.labels[i]);
      counts_->update(said, batch.labels[i]);
      worst_.update(sample, batch.labels[i], said);
      if (shown_.wants(batch.samples[i])) shown_.add({sample, batch.labels[i], said});
    }
  }

  void finish(World& world, Evaluation& result) override {
    // A rank without a sample does not know the number of classes.
    std::vector<double> classes(static_cast<size_t>(world.size()));
    classes[static_cast<size_t>(world.rank())] = static_cast<double>(classes_);
    world.sum(classes, "classes");
    if (!counts_) {
      const auto most = static_cast<int64_t>(*std::ranges::max_element(classes));
      counts_.emplace(most, options_.most_confusion_classes);
    }
    finish_counts(*counts_, worst_, options_, world, result);
    shown_.finish(world, channels_, result);
  }

 private:
  Evaluator& evaluator_;
  const EvaluateOptions& options_;
  size_t classes_ = 0;                                   // of the first batch; 0: this rank had none
  std::optional<monitor::ClassificationCounts> counts_;  // from the first batch on
  monitor::WorstMistakes worst_;
  Shown shown_;
  int64_t channels_ = 0;
};

/// The samples that fall to the rank which has most of them.
int64_t most_samples(const data::Source& source, int64_t ranks) {
  return (source.size() + ranks - 1) / ranks;
}

data::LoaderOptions of_rank(data::LoaderOptions options, int64_t batch, const LoadingRank& loading) {
  options.rank = loading.rank;
  options.world = loading.ranks;
  options.batch = batch * loading.ranks;
  options.accumulation = 1;
  if (!loading.loads) options.workers = 0;  // nothing is read before it is asked for
  return options;
}

}  // namespace

std::unique_ptr<Judge> Evaluator::judge(const data::Source& source, const EvaluateOptions& options) {
  return std::make_unique<HostJudge>(*this, source, options);
}

Shown::Shown(const data::Source& source, const EvaluateOptions& options)
    : source_(source),
      samples_(spread_samples(source, options.keep_samples)),
      rows_(samples_.size() * kColumns) {
  for (size_t i = 0; i < samples_.size(); ++i) place_of_[static_cast<uint64_t>(samples_[i])] = i;
}

void Shown::add(const monitor::Mistake& said) {
  const auto& [sample, truth, judgement] = said;
  const std::array<double, kColumns> row = {static_cast<double>(sample),
                                            static_cast<double>(truth),
                                            static_cast<double>(judgement.prediction),
                                            judgement.confidence,
                                            judgement.truth_confidence,
                                            judgement.loss,
                                            static_cast<double>(judgement.place),
                                            1};
  std::ranges::copy(
      row, rows_.begin() + static_cast<ptrdiff_t>(place_of_.at(static_cast<uint64_t>(sample)) * kColumns));
}

void Shown::finish(World& world, int64_t channels, Evaluation& result) const {
  if (samples_.empty()) return;
  std::vector<double> all = rows_;
  world.sum(all, "images to show");
  if (world.rank() != 0 || result.stopped) return;
  for (size_t i = 0; i < samples_.size(); ++i) {
    const double* row = &all[i * kColumns];
    const auto whole = [&](size_t column) { return static_cast<int64_t>(row[column]); };
    if (row[kColumns - 1] == 0 || whole(1) < 0) continue;
    try {
      result.samples.push_back(
          picture(source_, whole(0), channels, whole(1), {whole(2), row[3], row[4], row[5], whole(6)}));
    } catch (const UserError&) {  // it could be read a moment ago
    }
  }
}

void finish_counts(monitor::ClassificationCounts& counts, const monitor::WorstMistakes& mistakes,
                   const EvaluateOptions& options, World& world, Evaluation& result) {
  world.sum(counts.sums(), "evaluation");
  if (options.keep_mistakes > 0) {
    monitor::WorstMistakes worst(static_cast<size_t>(options.keep_mistakes));
    for (const auto& text : world.gather(mistakes.to_text(), "mistakes")) worst.merge(text);
    result.mistakes = worst.list();
  }
  result.figures = counts.compute();
  result.metrics.samples = result.figures.samples;
  result.metrics.loss = result.figures.loss;
  result.metrics.top1 = result.figures.top1;
  result.metrics.top5 = result.figures.top5;
}

// (More than 5 parameters: references that the pass holds.)
EvaluationPass::EvaluationPass(const Evaluator& evaluator, const data::Source& source,
                               const data::TransformOptions& transform, const data::LoaderOptions& loader,
                               int64_t batch, const World& world)
    : evaluator_(evaluator),
      loader_(std::make_unique<data::EvalLoader>(source, transform,
                                                 of_rank(loader, batch, evaluator.loading(world))),
              loader.patience),
      loads_(evaluator.loading(world).loads),
      batches_((most_samples(source, evaluator.loading(world).ranks) + batch - 1) / batch) {}

bool EvaluationPass::leave(bool known) {
  known ? loader_.close(data::kBrief) : loader_.close();
  return loader_.left_behind();
}

EvaluationPass::Next EvaluationPass::next() {
  Next next;
  next.has_samples = loads_ && loader_->next(&next.batch) && next.batch.size > 0;
  gave_up_ = gave_up_ || next.batch.given_up;
  if (!next.has_samples) next.batch = evaluator_.placeholder_batch();
  return next;
}

void agree_on_stop(World& world, bool& stop, bool& gave_up) {
  std::array<double, 2> votes = {stop ? 1.0 : 0.0, gave_up ? 1.0 : 0.0};
  world.sum(votes, "vote");
  stop = votes[0] > 0;
  gave_up = votes[1] > 0;
}

// (More than 5 parameters: the evaluator, its data and its ranks, each of which tests replace.)
Evaluation evaluate(Evaluator& evaluator, const data::Source& source, const data::TransformOptions& transform,
                    const data::LoaderOptions& loader, const EvaluateOptions& options, World& world) {
  const auto start = std::chrono::steady_clock::now();
  EvaluationPass pass(evaluator, source, transform, loader, options.batch, world);
  Evaluation result;
  const std::unique_ptr<Judge> judge = evaluator.judge(source, options);
  for (int64_t i = 0;; ++i) {
    if (options.stop) {
      // Also after the last batch, which may not have come.
      result.gave_up = pass.gave_up();
      result.stopped = pass.gave_up() || (i < pass.batches() && options.stop());
      agree_on_stop(world, result.stopped, result.gave_up);
    }
    if (i == pass.batches() || result.stopped) break;
    const auto [batch, has_samples] = pass.next();
    judge->update(batch, has_samples);
    if (options.progress) options.progress(i + 1, pass.batches());
  }
  if (result.stopped) result.stalled = pass.leave(result.gave_up);
  judge->finish(world, result);
  if (loader.ranks_decide && !result.stopped)
    data::check_broken(result.figures.broken, source.size(), loader.error_limit, "");
  if (!result.stopped) TESSERA_CHECK_EQ(result.metrics.samples, source.size());
  result.metrics.seconds = seconds_since(start);
  return result;
}

}  // namespace tessera::loop
