// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/step_end.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/shard/clip.h"

namespace tessera::eager {
namespace {

/// Does the host have to wait for loss and norm? (A CPU does not: they are there.)
bool computes_elsewhere(const TrainState& state) {
  return state.device_update != nullptr || !state.input->device().is_cpu();
}

loop::StepValues values_of(const TrainState& state, double loss, double square_sum) {
  return {loss, std::sqrt(square_sum) / state.loss_scale.value()};
}

}  // namespace

StepEnd::StepEnd(TrainState& state, at::Tensor loss, const loop::Votes& mine, mesh::Mesh& mesh)
    : StepEnd(state, std::move(loss), mine, mesh, computes_elsewhere(state)) {}

StepEnd::StepEnd(TrainState& state, at::Tensor loss, const loop::Votes& mine, mesh::Mesh& mesh,
                 bool elsewhere)
    : state_(state), mesh_(mesh), elsewhere_(elsewhere), loss_(std::move(loss)) {
  at::Tensor sums = at::tensor(
      {elsewhere ? 0.0 : loss_.item<double>(), elsewhere ? 0.0 : state.sharded->local_gradient_square_sum(),
       mine.stop ? 1.0 : 0.0, mine.stalled ? 1.0 : 0.0, static_cast<double>(mine.broken)},
      at::kDouble);
  mesh.meet_stages(mesh.world(), sums, "step");
  const double* sum = sums.const_data_ptr<double>();
  if (!elsewhere) values_ = values_of(state, sum[0], sum[1]);
  votes_ = {sum[2] > 0, sum[3] > 0, static_cast<int64_t>(sum[4])};
}

loop::StepValues StepEnd::values(const loop::UpdateSettings& settings) {
  if (!elsewhere_) return values_;
  if (state_.device_update) {
    DeviceUpdate& update = *state_.device_update;
    update.prepare(loss_, settings);
    state_.recorded ? state_.recorded->update(state_, mesh_) : update.queue();
    return values_ = update.read();
  }
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::stack({loss_, state_.sharded->gradient_square_sum()});
  mesh_.meet_stages(all_ranks(mesh_), sums, "step");
  const at::Tensor here = sums.to(at::kCPU);
  return values_ = values_of(state_, here[0].item<double>(), here[1].item<double>());
}

void StepEnd::finish(bool is_used, const loop::UpdateSettings& settings) {
  if (state_.device_update && !votes_.stalled) {
    TESSERA_CHECK_EQ(state_.device_update->was_made(), is_used);  // StepLimit::allows
    return;
  }
  if (!is_used) return;
  const double scale = settings.clip > 0 ? shard::clip_scale(settings.clip, values_.gradient_norm) : 1.0;
  state_.optimizer->step(settings.lr, scale / settings.loss_scale);
}

std::shared_ptr<DeviceUpdate> make_device_update(TrainState& state, mesh::Mesh& mesh) {
  const at::Device device = state.input->device();
  if (device.is_cpu() || !state.optimizer->can_queue()) return nullptr;
  return std::make_shared<DeviceUpdate>(*state.optimizer, *state.sharded, all_ranks(mesh), device);
}

mesh::Group& all_ranks(mesh::Mesh& mesh) { return mesh.group(mesh::Span{1, mesh.world_size()}); }

}  // namespace tessera::eager
