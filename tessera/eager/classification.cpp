// SPDX-License-Identifier: Apache-2.0
// One of several classes an image: the recipe's loss, top-1/5 and all that is counted by class.
#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/device/host_values.h"
#include "tessera/eager/classification_metrics.h"
#include "tessera/eager/loss.h"
#include "tessera/eager/task.h"
#include "tessera/loop/evaluation.h"

namespace tessera::eager {
namespace {

/// Counts where the logits are; the host reads what it shows, and everything at the end.
class ClassificationJudge : public OutputJudge {
 public:
  ClassificationJudge(const arch::ModelConfig& model, const data::Source& source,
                      const loop::EvaluateOptions& options)
      : options_(options),
        metrics_(model.classes(), options.most_confusion_classes),
        worst_(options.keep_mistakes),
        shown_(source, options),
        channels_(model.channels()) {}

  /// `outputs`: logits [size, classes]; label -1: a broken sample.
  void update(const data::Batch& batch, const at::Tensor& outputs) override {
    const at::Tensor labels = device::on_device(at::tensor(batch.labels), outputs.device());
    const Judgements said = judge_rows(outputs, labels);
    metrics_.update(said, labels);
    std::vector<int64_t> rows_to_show;
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      if (shown_.wants(batch.samples[i])) rows_to_show.push_back(static_cast<int64_t>(i));
    }
    if (rows_to_show.empty() && options_.keep_mistakes == 0) return;
    const std::vector<int64_t> samples(batch.samples.begin(), batch.samples.end());
    const at::Tensor rows = rows_of(said, labels, device::on_device(at::tensor(samples), outputs.device()));
    if (options_.keep_mistakes > 0) worst_.update(rows);
    if (!rows_to_show.empty())
      rows_to_show_.push_back(
          rows.index_select(0, device::on_device(at::tensor(rows_to_show), rows.device())));
  }

  void finish(loop::World& world, loop::Evaluation& result) override {
    monitor::ClassificationCounts counts = metrics_.compute();
    loop::finish_counts(counts, worst_.list(), options_, world, result);
    for (const at::Tensor& rows : rows_to_show_) {
      const at::Tensor here = rows.to(at::kCPU);
      for (int64_t i = 0; i < here.size(0); ++i) shown_.add(mistake_of(here[i]));
    }
    shown_.finish(world, channels_, result);
  }

 private:
  const loop::EvaluateOptions& options_;
  ClassificationMetrics metrics_;
  WorstRows worst_;
  loop::Shown shown_;
  std::vector<at::Tensor> rows_to_show_;  // of rows_of(), this rank's
  const int64_t channels_;
};

class Classification : public Task {
 public:
  explicit Classification(recipe::Recipe recipe) : recipe_(std::move(recipe)) {}
  at::Tensor loss_sum(const at::Tensor& outputs, const data::Batch& batch,
                      const at::Tensor& teacher_logits) const override {
    return eager::loss_sum(outputs, batch, recipe_, teacher_logits);
  }
  std::unique_ptr<OutputJudge> judge(const data::Source& source,
                                     const loop::EvaluateOptions& options) const override {
    return std::make_unique<ClassificationJudge>(recipe_.model, source, options);
  }

 private:
  recipe::Recipe recipe_;
};

}  // namespace

std::shared_ptr<const Task> make_task(const recipe::Recipe& recipe) {
  return std::make_shared<Classification>(recipe);
}

}  // namespace tessera::eager
