// SPDX-License-Identifier: Apache-2.0
// Evaluation: every sample exactly once over all ranks, the same figures on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/data/leaving.h"
#include "tessera/data/loader.h"
#include "tessera/loop/world.h"
#include "tessera/monitor/classification.h"
#include "tessera/monitor/report.h"

namespace tessera::loop {

class Evaluator;

struct Evaluation {
  monitor::EvalMetrics metrics;
  monitor::ClassificationFigures figures;          // what `metrics` has, by class and bin
  std::vector<monitor::PredictionSample> samples;  // rank 0: images to show, with what the model said
  std::vector<monitor::Mistake> mistakes;          // the worst of all ranks, worst first
  bool stopped = false;                            // a stop was asked for; figures are of the samples so far
  bool gave_up = false;                            // and the images of some rank did not come
  bool stalled = false;  // and threads of this rank hang in a file; they are left behind
};

struct EvaluateOptions {
  int64_t batch = 0;         // per rank
  int64_t keep_samples = 0;  // images to show, those of spread_samples()
  int64_t keep_mistakes = 0;
  int64_t most_confusion_classes = 100;                            // models of more get no confusion matrix
  std::function<bool()> stop = {};                                 // polled each batch; ranks agree on it
  std::function<void(int64_t done, int64_t total)> progress = {};  // batches of this rank
};

/// Of one evaluation, what this rank has seen. Belongs to one thread.
class Judge {
 public:
  virtual ~Judge() = default;
  /// Forward pass of a batch; counts it where `has_samples`, else it is a placeholder batch. Collective.
  virtual void update(const data::Batch& batch, bool has_samples) = 0;
  /// The figures of all ranks, the same on each; on rank 0 the images to show, unless the evaluation was
  /// stopped. Collective.
  virtual void finish(World& world, Evaluation& result) = 0;
};

/// What an evaluation of classes keeps besides its counts: images to show, and the worst mistakes.
class Shown {
 public:
  /// Both outlive it.
  Shown(const data::Source& source, const EvaluateOptions& options);
  /// Is a sample of the batch to be shown?
  bool wants(uint64_t sample) const { return place_of_.contains(sample); }
  void add(const monitor::Mistake& said);
  /// Rank 0 gets what was said of every image to show, and reads the images. Collective.
  void finish(World& world, int64_t channels, Evaluation& result) const;

 private:
  const data::Source& source_;
  std::vector<int64_t> samples_;
  std::unordered_map<uint64_t, size_t> place_of_;
  std::vector<double> rows_;
};

/// Sums `counts` and the worst mistakes over the ranks into `result`. Collective.
void finish_counts(monitor::ClassificationCounts& counts, const monitor::WorstMistakes& mistakes,
                   const EvaluateOptions& options, World& world, Evaluation& result);

/// `count` samples that stand for all, the same on any ranks: every class has its share, and within a class a
/// hash draws. Their order is a hash's too, so that the first few of them stand for all as well.
std::vector<int64_t> spread_samples(const data::Source& source, int64_t count);

/// Sample `index` of the source with what was said about it. Errors: UserError where it cannot be read.
monitor::PredictionSample picture(const data::Source& source, int64_t index, int64_t channels, int64_t truth,
                                  const monitor::Judgement& said);

/// One pass over a source: every sample exactly once over all ranks, a batch a rank at a time. A rank that
/// has none left, or does not load, gets placeholder batches, and takes part in the gathers of the others
/// with them. Collective.
class EvaluationPass {
 public:
  /// `batch`: samples of a rank.
  EvaluationPass(const Evaluator& evaluator, const data::Source& source,
                 const data::TransformOptions& transform, const data::LoaderOptions& loader, int64_t batch,
                 const World& world);
  /// The same number on every rank.
  int64_t batches() const { return batches_; }

  struct Next {
    data::Batch batch;
    bool has_samples = false;  // false: a placeholder batch
  };
  Next next();
  /// A batch of this rank did not come, and data::LoaderOptions::give_up ended the wait.
  bool gave_up() const { return gave_up_; }
  /// Ends the loader before its last batch; true: threads hang in a file, and are left behind. `known`: that
  /// files do not answer is why it ends, and needs no second wait.
  bool leave(bool known);

 private:
  const Evaluator& evaluator_;
  data::Leaving<data::EvalLoader> loader_;
  const bool loads_;
  int64_t batches_;
  bool gave_up_ = false;
};

/// Do all ranks go on? `stop`: this rank was asked to stop; `gave_up`: its images do not come. Sets both to
/// whether it is so of any rank. Collective.
void agree_on_stop(World& world, bool& stop, bool& gave_up);

/// Collective. Ranks with fewer samples take part in the gathers of the others.
Evaluation evaluate(Evaluator& evaluator, const data::Source& source, const data::TransformOptions& transform,
                    const data::LoaderOptions& loader, const EvaluateOptions& options, World& world);

}  // namespace tessera::loop
