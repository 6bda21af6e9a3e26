// One of several classes an image: the recipe's loss, top-1/5 and all that is counted by class.
#include <ATen/ATen.h>

#include "tessera/train/evaluate.h"
#include "tessera/train/loss.h"
#include "tessera/train/task.h"

namespace tessera::train {
namespace {

/// Counts on the host, in double: figures are then the same sums on any device and any number of ranks, and
/// it gets nothing but [size, classes] numbers a batch.
class ClassificationJudge : public Judge {
 public:
  ClassificationJudge(int64_t classes, const data::Source& source, const EvaluateOptions& options)
      : source_(source),
        options_(options),
        counts_(classes, options.most_confusion_classes),
        mistakes_(static_cast<size_t>(options.keep_mistakes)) {}

  /// `outputs`: logits [size, classes]; label -1: a broken sample.
  void update(const data::Batch& batch, const at::Tensor& outputs, int64_t keep_samples,
              Evaluation& result) override {
    const at::Tensor rows = outputs.to(at::kCPU, at::kFloat).contiguous();
    const auto classes = static_cast<size_t>(rows.size(1));
    for (int64_t i = 0; i < batch.size; ++i) {
      const int64_t label = batch.labels[static_cast<size_t>(i)];
      if (label < 0) {
        counts_.update_broken();
        continue;
      }
      const auto sample = static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]);
      const monitor::Judgement said =
          monitor::judge({rows.const_data_ptr<float>() + static_cast<size_t>(i) * classes, classes}, label);
      counts_.update(said, label);
      mistakes_.update(sample, label, said);
      if (static_cast<int64_t>(result.samples.size()) < keep_samples) {
        result.samples.push_back(picture(source_, sample, batch.channels, label, said));
      }
    }
  }

  void finish(mesh::Mesh& mesh, Evaluation& result) override {
    const auto mine = counts_.sums();
    at::Tensor sums = at::from_blob(mine.data(), {static_cast<int64_t>(mine.size())}, at::kDouble);
    mesh.world().all_reduce(sums, "evaluation");
    if (options_.keep_mistakes > 0) {
      monitor::WorstMistakes worst(static_cast<size_t>(options_.keep_mistakes));
      for (const auto& text : mesh.world().all_gather_text(mistakes_.to_text(), "mistakes"))
        worst.merge(text);
      result.mistakes = worst.list();
    }
    result.figures = counts_.compute();
    result.metrics.samples = result.figures.samples;
    result.metrics.loss = result.figures.loss;
    result.metrics.top1 = result.figures.top1;
    result.metrics.top5 = result.figures.top5;
  }

 private:
  const data::Source& source_;
  const EvaluateOptions& options_;
  monitor::ClassificationCounts counts_;
  monitor::WorstMistakes mistakes_;
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
