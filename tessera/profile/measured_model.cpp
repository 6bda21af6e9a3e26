// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/measured_model.h"

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/task.h"
#include "tessera/profile/lone_rank.h"
#include "tessera/profile/pass_times.h"

namespace tessera::profile {
namespace {

plan::Plan measured_plan(const recipe::Recipe& recipe, const MeasuredLayout& layout) {
  const bool recomputes = layout.recompute != plan::Recompute::kNone;
  plan::Plan plan = plan::uniform_plan(recipe.model, layout.tensor, plan::Level::kReplicate, recomputes,
                                       /*prefetch=*/1);
  for (plan::UnitPlan& unit : plan.units) {
    if (unit.recomputes()) unit.recompute = layout.recompute;
  }
  plan::set_tensor(&plan, recipe.model, {layout.tensor, /*adjacent=*/true}, recipe.parallel.keep_gathered);
  return plan;
}

}  // namespace

recipe::Recipe measured_recipe(recipe::Recipe recipe, std::vector<std::string>* kinds) {
  recipe.model = model_of_few_blocks(recipe.model, kinds);
  recipe.optimizer.groups.clear();  // patterns may name units that are left out
  recipe.distill = {};
  return recipe;
}

data::Batch random_batch(const arch::ModelConfig& model, int64_t size) {
  data::Batch batch;
  batch.size = batch.step_size = size;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  const at::Tensor values = at::randn({size * batch.channels * batch.height * batch.width});
  const float* first = values.const_data_ptr<float>();
  batch.images.assign(first, first + values.numel());
  for (int64_t i = 0; i < size; ++i) {
    batch.labels.push_back(i % model.classes());
    batch.samples.push_back(static_cast<uint64_t>(i));
  }
  return batch;
}

MeasuredModel::MeasuredModel(const recipe::Recipe& recipe, const MeasuredLayout& layout)
    : plan_(measured_plan(recipe, layout)),
      mesh_(lone_rank(plan_, recipe.run.shared_memory ? "shared memory" : "TCP")),
      state_(eager::assemble(recipe, plan_, *mesh_, layout.with_optimizer)) {
  for (const auto& unit : state_->sharded->units()) {
    // As on a rank of several, whose gradients travel in the dtype in which they are made.
    if (!layout.with_optimizer) unit->allow_gradient_as_made(true);
    values_ += unit->master().numel();
  }
}

std::vector<UnitPass> MeasuredModel::micro_batch(const data::Batch& batch, bool last) {
  return traced_units([&] {
    const at::Tensor logits = eager::forward(*state_, batch, /*training=*/true, /*key=*/1);
    const at::Tensor loss = state_->task->loss_sum(logits, batch, {}) / static_cast<double>(batch.step_size);
    loss_ = loss.detach().to(at::kDouble);
    state_->sharded->backward(loss, last);
  });
}

double MeasuredModel::update() {
  const auto start = std::chrono::steady_clock::now();
  eager::StepEnd end(*state_, loss_, {}, *mesh_);
  const loop::UpdateSettings settings{1e-6, state_->recipe.train.clip, 1, {}};
  end.values(settings);
  end.finish(/*is_used=*/true, settings);
  state_->sharded->parameters_changed();
  if (state_->ema) state_->ema->follow(++updates_);
  return seconds_since(start);
}

}  // namespace tessera::profile
