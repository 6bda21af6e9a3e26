#include "tessera/train/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/data/broken_samples.h"

namespace tessera::train {
namespace {

constexpr int64_t kMostClassesForConfusion = 100;
constexpr int64_t kTop = 5;

/// Sums over this rank's samples; one float64 tensor, so that one all-reduce makes them global.
class Counts {
 public:
  explicit Counts(int64_t classes)
      : classes_(classes), confusion_classes_(classes <= kMostClassesForConfusion ? classes : 0) {
    sums_ = at::zeros({5 + confusion_classes_ * confusion_classes_}, at::kDouble);
  }

  /// logits [size, classes] float32, labels [size] int64 (-1: a broken sample, counts as wrong).
  void update(const at::Tensor& logits, const at::Tensor& labels) {
    const at::Tensor known = labels.ge(0);
    const at::Tensor loss =
        at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, /*ignore_index=*/-1);
    const at::Tensor top = std::get<1>(logits.topk(std::min(kTop, classes_), 1));
    const at::Tensor hits = top.eq(labels.unsqueeze(1));
    double* sums = sums_.data_ptr<double>();
    sums[0] += static_cast<double>(labels.numel());
    sums[1] += known.sum().item<double>() > 0 ? loss.item<double>() : 0.0;
    sums[2] += hits.select(1, 0).sum().item<double>();
    sums[3] += hits.any(1).sum().item<double>();
    sums[4] += known.sum().item<double>();
    if (confusion_classes_ == 0) return;
    const at::Tensor prediction = top.select(1, 0);
    for (int64_t i = 0; i < labels.numel(); ++i) {
      const auto truth = labels[i].item<int64_t>();
      if (truth >= 0) sums[5 + truth * classes_ + prediction[i].item<int64_t>()] += 1.0;
    }
  }

  void finish(mesh::Mesh& mesh, Evaluation& result) {
    mesh.world().all_reduce(sums_, "evaluation");
    const double* sums = sums_.const_data_ptr<double>();
    const double samples = std::max(sums[0], 1.0);
    result.metrics.samples = static_cast<int64_t>(sums[0]);
    result.broken = static_cast<int64_t>(sums[0] - sums[4]);
    result.metrics.loss = sums[1] / std::max(sums[4], 1.0);
    result.metrics.top1 = 100.0 * sums[2] / samples;
    result.metrics.top5 = 100.0 * sums[3] / samples;
    for (int64_t truth = 0; truth < confusion_classes_; ++truth) {
      const double* row = sums + 5 + truth * classes_;
      result.confusion.emplace_back(row, row + classes_);
    }
  }

 private:
  int64_t classes_, confusion_classes_;
  at::Tensor sums_;  // samples, loss, top-1 hits, top-5 hits, samples with a label, confusion
};

void keep_samples(const data::Source& source, const data::Batch& batch, const at::Tensor& logits,
                  int64_t most, std::vector<monitor::PredictionSample>& samples) {
  const at::Tensor probabilities = logits.softmax(1);
  const auto [confidence, prediction] = probabilities.max(1);
  for (int64_t i = 0; i < batch.size && static_cast<int64_t>(samples.size()) < most; ++i) {
    const int64_t truth = batch.labels[static_cast<size_t>(i)];
    if (truth < 0) continue;
    const data::Image image =
        source.read(static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]), batch.channels);
    const auto name = [&classes = source.classes()](int64_t label) {
      const auto index = static_cast<size_t>(label);  // the model may have more classes than the data
      return index < classes.size() ? classes[index] : std::to_string(label);
    };
    samples.push_back({image.width, image.height, image.channels, image.pixels, name(truth),
                       name(prediction[i].item<int64_t>()), confidence[i].item<double>()});
  }
}

}  // namespace

Evaluation evaluate(TrainState& state, const data::Source& source, const data::LoaderOptions& loader_options,
                    const EvaluateOptions& options, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  state.sharded->average_buffers();
  data::LoaderOptions own = loader_options;
  own.rank = mesh.rank();
  own.world = mesh.world_size();
  own.batch = options.batch * mesh.world_size();
  own.accumulation = 1;
  data::EvalLoader loader(source, state.recipe.data.transform, own);
  const int64_t most_samples = (source.size() + mesh.world_size() - 1) / mesh.world_size();
  const int64_t batches = (most_samples + options.batch - 1) / options.batch;

  Evaluation result;
  Counts counts(state.recipe.model.classes());
  for (int64_t i = 0; i < batches; ++i) {
    if (options.stop) {
      at::Tensor vote = at::full({1}, options.stop() ? 1.0 : 0.0, at::kDouble);
      mesh.world().all_reduce(vote, "vote");
      if ((result.stopped = vote.item<double>() > 0)) break;
    }
    data::Batch batch;
    const bool mine = loader.next(&batch) && batch.size > 0;
    if (!mine) batch = stand_in(state);
    const at::Tensor logits = forward(state, batch, /*training=*/false, 0).to(at::kCPU);
    if (mine) {
      counts.update(logits, at::tensor(batch.labels));
      if (mesh.rank() == 0) keep_samples(source, batch, logits, options.keep_samples, result.samples);
    }
    if (options.progress) options.progress(i + 1, batches);
  }
  counts.finish(mesh, result);
  if (own.ranks_decide) data::check_broken(result.broken, source.size(), own.error_limit, "");
  if (!result.stopped) TESSERA_CHECK_EQ(result.metrics.samples, source.size());
  result.metrics.seconds = seconds_since(start);
  return result;
}

}  // namespace tessera::train
