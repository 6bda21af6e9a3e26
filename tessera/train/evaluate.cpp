#include "tessera/train/evaluate.h"

#include <ATen/ATen.h>

#include <chrono>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/data/broken_samples.h"

namespace tessera::train {
namespace {

/// A label's name; the model may have more classes than the data.
std::string class_name(const data::Source& source, int64_t label) {
  const auto index = static_cast<size_t>(label);
  return index < source.classes().size() ? source.classes()[index] : std::to_string(label);
}

/// What this rank has counted, and what it keeps to show.
struct Findings {
  monitor::ClassificationCounts counts;
  monitor::WorstMistakes mistakes;

  /// logits [size, classes] float32; label -1: a broken sample.
  void update(const data::Source& source, const data::Batch& batch, const at::Tensor& logits,
              int64_t keep_samples, std::vector<monitor::PredictionSample>& samples) {
    const at::Tensor rows = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto classes = static_cast<size_t>(rows.size(1));
    for (int64_t i = 0; i < batch.size; ++i) {
      const int64_t label = batch.labels[static_cast<size_t>(i)];
      if (label < 0) {
        counts.update_broken();
        continue;
      }
      const auto sample = static_cast<int64_t>(batch.samples[static_cast<size_t>(i)]);
      const monitor::Judgement said =
          monitor::judge({rows.const_data_ptr<float>() + static_cast<size_t>(i) * classes, classes}, label);
      counts.update(said, label);
      mistakes.update(sample, label, said);
      if (static_cast<int64_t>(samples.size()) < keep_samples) {
        samples.push_back(picture(source, sample, batch.channels, label, said));
      }
    }
  }

  /// Of all ranks. Collective.
  void finish(mesh::Mesh& mesh, const EvaluateOptions& options, Evaluation& result) {
    const auto mine = counts.sums();
    at::Tensor sums = at::from_blob(mine.data(), {static_cast<int64_t>(mine.size())}, at::kDouble);
    mesh.world().all_reduce(sums, "evaluation");
    if (options.keep_mistakes > 0) {
      monitor::WorstMistakes worst(static_cast<size_t>(options.keep_mistakes));
      for (const auto& text : mesh.world().all_gather_text(mistakes.to_text(), "mistakes")) worst.merge(text);
      result.mistakes = worst.list();
    }
    result.figures = counts.compute();
    result.metrics.samples = result.figures.samples;
    result.metrics.loss = result.figures.loss;
    result.metrics.top1 = result.figures.top1;
    result.metrics.top5 = result.figures.top5;
  }
};

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

namespace {

/// The samples that fall to the rank which has most of them.
int64_t most_samples(const data::Source& source, const mesh::Mesh& mesh) {
  return (source.size() + mesh.world_size() - 1) / mesh.world_size();
}

data::LoaderOptions of_rank(data::LoaderOptions options, int64_t batch, const mesh::Mesh& mesh) {
  options.rank = mesh.rank();
  options.world = mesh.world_size();
  options.batch = batch * mesh.world_size();
  options.accumulation = 1;
  return options;
}

}  // namespace

EvaluationPass::EvaluationPass(TrainState& state, const data::Source& source,
                               const data::LoaderOptions& loader, int64_t batch, mesh::Mesh& mesh)
    : state_(state),
      loader_(source, state.recipe.data.transform, of_rank(loader, batch, mesh)),
      batches_((most_samples(source, mesh) + batch - 1) / batch) {
  state.sharded->average_buffers();
}

EvaluationPass::Next EvaluationPass::next() {
  Next next;
  next.mine = loader_.next(&next.batch) && next.batch.size > 0;
  if (!next.mine) next.batch = stand_in(state_);
  return next;
}

Evaluation evaluate(TrainState& state, const data::Source& source, const data::LoaderOptions& loader_options,
                    const EvaluateOptions& options, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  EvaluationPass pass(state, source, loader_options, options.batch, mesh);
  Evaluation result;
  Findings findings{{state.recipe.model.classes(), options.most_confusion_classes},
                    monitor::WorstMistakes(static_cast<size_t>(options.keep_mistakes))};
  for (int64_t i = 0; i < pass.batches(); ++i) {
    if (options.stop) {
      at::Tensor vote = at::full({1}, options.stop() ? 1.0 : 0.0, at::kDouble);
      mesh.world().all_reduce(vote, "vote");
      if ((result.stopped = vote.item<double>() > 0)) break;
    }
    const auto [batch, mine] = pass.next();
    const at::Tensor logits = forward(state, batch, /*training=*/false, 0).to(at::kCPU);
    if (mine) {
      const int64_t keep = mesh.rank() == 0 ? options.keep_samples : 0;
      findings.update(source, batch, logits, keep, result.samples);
    }
    if (options.progress) options.progress(i + 1, pass.batches());
  }
  findings.finish(mesh, options, result);
  if (loader_options.ranks_decide)
    data::check_broken(result.figures.broken, source.size(), loader_options.error_limit, "");
  if (!result.stopped) TESSERA_CHECK_EQ(result.metrics.samples, source.size());
  result.metrics.seconds = seconds_since(start);
  return result;
}

}  // namespace tessera::train
