// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/broken_samples.h"
#include "tessera/eager/task.h"

namespace tessera::eager {
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
      loader_(std::make_unique<data::EvalLoader>(source, state.recipe.data.transform,
                                                 of_rank(loader, batch, mesh)),
              loader.patience),
      batches_((most_samples(source, mesh) + batch - 1) / batch) {
  state.sharded->average_buffers();
}

bool EvaluationPass::leave(bool known) {
  known ? loader_.close(data::kBrief) : loader_.close();
  return loader_.left_behind();
}

EvaluationPass::Next EvaluationPass::next() {
  Next next;
  next.has_samples = loader_->next(&next.batch) && next.batch.size > 0;
  gave_up_ = gave_up_ || next.batch.given_up;
  if (!next.has_samples) next.batch = placeholder_batch(state_);
  return next;
}

Evaluation evaluate(TrainState& state, const data::Source& source, const data::LoaderOptions& loader_options,
                    const EvaluateOptions& options, mesh::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  EvaluationPass pass(state, source, loader_options, options.batch, mesh);
  Evaluation result;
  const std::unique_ptr<Judge> judge = state.task->judge(source, options);
  for (int64_t i = 0;; ++i) {
    if (options.stop) {
      // Also after the last batch, which may not have come.
      const bool stop = pass.gave_up() || (i < pass.batches() && options.stop());
      at::Tensor votes = at::tensor({stop ? 1.0 : 0.0, pass.gave_up() ? 1.0 : 0.0}, at::kDouble);
      mesh.world().all_reduce(votes, "vote");
      result.stopped = votes[0].item<double>() > 0;
      result.gave_up = votes[1].item<double>() > 0;
    }
    if (i == pass.batches() || result.stopped) break;
    const auto [batch, has_samples] = pass.next();
    const at::Tensor outputs = forward(state, batch, /*training=*/false, 0);
    if (has_samples) judge->update(batch, outputs);
    if (options.progress) options.progress(i + 1, pass.batches());
  }
  if (result.stopped) result.stalled = pass.leave(result.gave_up);
  judge->finish(mesh, result);
  if (loader_options.ranks_decide && !result.stopped)
    data::check_broken(result.figures.broken, source.size(), loader_options.error_limit, "");
  if (!result.stopped) TESSERA_CHECK_EQ(result.metrics.samples, source.size());
  result.metrics.seconds = seconds_since(start);
  return result;
}

}  // namespace tessera::eager
