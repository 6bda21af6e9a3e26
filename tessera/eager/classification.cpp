// SPDX-License-Identifier: Apache-2.0
// One of several classes an image: the recipe's loss, top-1/5 and all that is counted by class.
#include <ATen/ATen.h>

#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/eager/classification_metrics.h"
#include "tessera/eager/evaluate.h"
#include "tessera/eager/loss.h"
#include "tessera/eager/task.h"
#include "tessera/ops/host_values.h"

namespace tessera::eager {
namespace {

/// Counts where the logits are; the host reads what it shows, and everything at the end.
class ClassificationJudge : public Judge {
 public:
  ClassificationJudge(int64_t classes, const data::Source& source, const EvaluateOptions& options)
      : source_(source),
        options_(options),
        metrics_(classes, options.most_confusion_classes),
        worst_(options.keep_mistakes),
        shown_(spread_samples(source, options.keep_samples)) {
    for (size_t i = 0; i < shown_.size(); ++i) place_of_[shown_[i]] = static_cast<int64_t>(i);
  }

  /// `outputs`: logits [size, classes]; label -1: a broken sample.
  void update(const data::Batch& batch, const at::Tensor& outputs) override {
    const at::Tensor labels = ops::on_device(at::tensor(batch.labels), outputs.device());
    const Judgements said = judge_rows(outputs, labels);
    metrics_.update(said, labels);
    channels_ = batch.channels;
    std::vector<int64_t> rows_to_show;
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      if (place_of_.contains(batch.samples[i])) rows_to_show.push_back(static_cast<int64_t>(i));
    }
    if (rows_to_show.empty() && options_.keep_mistakes == 0) return;
    const std::vector<int64_t> samples(batch.samples.begin(), batch.samples.end());
    const at::Tensor rows = rows_of(said, labels, ops::on_device(at::tensor(samples), outputs.device()));
    if (options_.keep_mistakes > 0) worst_.update(rows);
    if (!rows_to_show.empty())
      rows_to_show_.push_back(rows.index_select(0, ops::on_device(at::tensor(rows_to_show), rows.device())));
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
    show(mesh, result);
    result.figures = counts.compute();
    result.metrics.samples = result.figures.samples;
    result.metrics.loss = result.figures.loss;
    result.metrics.top1 = result.figures.top1;
    result.metrics.top5 = result.figures.top5;
  }

 private:
  /// Every image to show was judged by one rank. Rank 0 gets what was said and reads the images.
  void show(mesh::Mesh& mesh, Evaluation& result) const {
    if (shown_.empty()) return;
    constexpr int64_t kColumns = 8;  // of rows_of(), and whether the row was judged at all
    at::Tensor all = at::zeros({static_cast<int64_t>(shown_.size()), kColumns}, at::kDouble);
    for (const at::Tensor& rows : rows_to_show_) {
      const at::Tensor here = rows.to(at::kCPU);
      for (int64_t i = 0; i < here.size(0); ++i) {
        const at::Tensor place = all[place_of_.at(mistake_of(here[i]).sample)];
        place.slice(0, 0, kColumns - 1).copy_(here[i]);
        place[kColumns - 1].fill_(1);
      }
    }
    mesh.world().all_reduce(all, "images to show");
    if (mesh.rank() != 0 || result.stopped) return;
    for (int64_t i = 0; i < all.size(0); ++i) {
      const monitor::Mistake said = mistake_of(all[i].slice(0, 0, kColumns - 1));
      if (all[i][kColumns - 1].item<double>() == 0 || said.truth < 0) continue;
      try {
        result.samples.push_back(picture(source_, said.sample, channels_, said.truth, said.judgement));
      } catch (const UserError&) {  // it could be read a moment ago
      }
    }
  }

  const data::Source& source_;
  const EvaluateOptions& options_;
  ClassificationMetrics metrics_;
  WorstRows worst_;
  std::vector<int64_t> shown_;                     // samples
  std::unordered_map<int64_t, int64_t> place_of_;  // of each of them in `shown_`
  std::vector<at::Tensor> rows_to_show_;           // of rows_of(), this rank's
  int64_t channels_ = 0;
};

class Classification : public Task {
 public:
  explicit Classification(recipe::Recipe recipe) : recipe_(std::move(recipe)) {}
  at::Tensor loss_sum(const at::Tensor& outputs, const data::Batch& batch,
                      const at::Tensor& teacher_logits) const override {
    return eager::loss_sum(outputs, batch, recipe_, teacher_logits);
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

}  // namespace tessera::eager
