// SPDX-License-Identifier: Apache-2.0
// One of several classes an image: the recipe's loss, top-1/5 and all that is counted by class.
#include <ATen/ATen.h>

#include "tessera/ops/host_made.h"
#include "tessera/train/classification_metrics.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/loss.h"
#include "tessera/train/task.h"

namespace tessera::train {
namespace {

/// Counts where the logits are; the host reads what it shows, and everything at the end.
class ClassificationJudge : public Judge {
 public:
  ClassificationJudge(int64_t classes, const data::Source& source, const EvaluateOptions& options)
      : source_(source),
        options_(options),
        metrics_(classes, options.most_confusion_classes),
        worst_(options.keep_mistakes) {}

  /// `outputs`: logits [size, classes]; label -1: a broken sample.
  void update(const data::Batch& batch, const at::Tensor& outputs, int64_t keep_samples,
              Evaluation& result) override {
    const at::Tensor labels = ops::on_device(at::tensor(batch.labels), outputs.device());
    const Judgements said = judge_rows(outputs, labels);
    metrics_.update(said, labels);
    const int64_t wanted = keep_samples - static_cast<int64_t>(result.samples.size());
    if (wanted <= 0 && options_.keep_mistakes == 0) return;
    const std::vector<int64_t> samples(batch.samples.begin(), batch.samples.end());
    const at::Tensor rows = rows_of(said, labels, ops::on_device(at::tensor(samples), outputs.device()));
    if (options_.keep_mistakes > 0) worst_.update(rows);
    if (wanted > 0) show(rows, wanted, batch.channels, result);
  }

  void finish(mesh::Mesh& mesh, Evaluation& result) override {
    monitor::ClassificationCounts counts = metrics_.compute();
    const auto mine = counts.sums();
    at::Tensor sums = at::from_blob(mine.data(), {static_cast<int64_t>(mine.size())}, at::kDouble);
    mesh.world().all_reduce(sums, "evaluation");
    if (options_.keep_mistakes > 0) {
      monitor::WorstMistakes worst(static_cast<size_t>(options_.keep_mistakes));
      for (const auto& text : mesh.world().all_gather_text(worst_.list().to_text(), "mistakes"))
        worst.merge(text);
      result.mistakes = worst.list();
    }
    result.figures = counts.compute();
    result.metrics.samples = result.figures.samples;
    result.metrics.loss = result.figures.loss;
    result.metrics.top1 = result.figures.top1;
    result.metrics.top5 = result.figures.top5;
  }

 private:
  void show(const at::Tensor& rows, int64_t wanted, int64_t channels, Evaluation& result) const {
    const at::Tensor here = rows.to(at::kCPU);
    for (int64_t i = 0; i < here.size(0) && wanted > 0; ++i) {
      const monitor::Mistake said = mistake_of(here[i]);
      if (said.truth < 0) continue;
      result.samples.push_back(picture(source_, said.sample, channels, said.truth, said.judgement));
      --wanted;
    }
  }

  const data::Source& source_;
  const EvaluateOptions& options_;
  ClassificationMetrics metrics_;
  WorstRows worst_;
};

class Classification : public Task {
 public:
  explicit Classification(recipe::Recipe recipe) : recipe_(std::move(recipe)) {}
  at::Tensor loss_sum(const at::Tensor& outputs, const data::Batch& batch,
                      const at::Tensor& taught) const override {
    return train::loss_sum(outputs, batch, recipe_, taught);
  }
  std::unique_ptr<Judge> judge(const data::Source& source, const EvaluateOptions& options) const override {
    return std::make_unique<ClassificationJudge>(recipe_.model.classes(), source, options);
  }

 private:
  recipe::Recipe recipe_;
};

}  // namespace

std::shared_ptr<const Task> make_task(const recipe::Recipe& recipe) {
  return std::make_shared<Classification>(recipe);
}

}  // namespace tessera::train
