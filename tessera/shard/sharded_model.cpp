// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/sharded_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/gradient_memory.h"
#include "tessera/ops/square_sum.h"
#include "tessera/plan/spans.h"
#include "tessera/shard/average.h"
#include "tessera/shard/recomputed_run.h"
#include "tessera/shard/replay.h"

namespace tessera::shard {
using torch::autograd::variable_list;

namespace {

void release(Unit& unit) {
  unit.release();
  Trace* trace = current_trace();
  const bool gone = unit.resharded_after_forward() && unit.comes_and_goes();
  if (trace != nullptr && gone) trace->instant("release", unit.name());
}

}  // namespace

class ShardedModel::RecomputedSegment : public RecomputedRun {
 public:
  RecomputedSegment(ShardedModel& model, size_t index)
      : model_(model), index_(index), repeat_(segment().repeat ? segment().repeat() : segment().forward) {}

  Tensors run(const Tensors& inputs) override { return {segment().forward(inputs[0])}; }

  Tensors run_again(const Tensors& inputs) override {
    model_.gather_for_backward(index_);
    const at::AutoGradMode with_gradients(true);
    std::optional<Replay> buffers_unchanged;
    if (!segment().buffers.empty()) buffers_unchanged.emplace();
    return {repeat_(inputs[0])};
  }

 private:
  const ShardedSegment& segment() const { return model_.segments_[index_]; }

  ShardedModel& model_;
  size_t index_;
  ShardedSegment::Forward repeat_;
};

ShardedModel::ShardedModel(std::vector<ShardedSegment> segments, const plan::Plan& plan, Precision precision,
                           mesh::Mesh& mesh, at::Device device)
    : mesh_(mesh),
      stage_(mesh.group(plan::stage_span(plan))),
      segments_(std::move(segments)),
      prefetch_(plan.prefetch),
      pool_(device) {
  TESSERA_CHECK_EQ(plan.world, mesh.world_size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    const plan::UnitPlan& unit_plan = plan::unit_of(plan, segments_[i].name);
    TESSERA_CHECK(segments_[i].name != plan.units.front().name || !unit_plan.recomputes(),
                  "the first segment's input has no gradient to recompute for");
    if (segments_[i].local_stage == virtual_stages_.size()) {
      const size_t local_stage = virtual_stages_.size();
      virtual_stages_.push_back({i, i, i});
      virtual_stages_.back().reductions = std::make_unique<Reductions>(
          Reductions::Callbacks{.first_gradient = {}, .gradients_left = [this, local_stage](size_t index) {
                                  gradients_left(virtual_stages_[local_stage].units[index]);
                                }});
    }
    TESSERA_CHECK_EQ(segments_[i].local_stage + 1, virtual_stages_.size());
    virtual_stages_.back().end = i + 1;
    if (segments_[i].frozen) virtual_stages_.back().trained = i + 1;
    recompute_.push_back(unit_plan.recomputes());
    segment_units_.emplace_back();
    add_unit(i, segments_[i].parameters, unit_plan, plan, precision);
    if (unit_plan.is_cut()) add_unit(i, segments_[i].rows, plan::rows_plan(unit_plan), plan, precision);
  }
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::add_unit(size_t segment, UnitParameters parameters, const plan::UnitPlan& unit_plan,
                            const plan::Plan& plan, Precision precision) {
  const UnitGroups groups{mesh_.group(plan::shard_span(plan, unit_plan)),
                          mesh_.group(plan::replicate_span(plan, unit_plan)),
                          &mesh_.group(plan::tensor_span(plan, unit_plan))};
  units_.push_back(std::make_unique<Unit>(unit_plan.name, std::move(parameters), unit_plan.level, precision,
                                          groups, pool_, unit_plan.offload));
  Unit* unit = units_.back().get();
  segment_units_[segment].push_back(unit);
  if (!segments_[segment].frozen) {
    stage_with(segment).reductions->watch(*unit, segment);
    stage_with(segment).units.push_back(units_.size() - 1);
  }
  for (size_t i = 0; i < unit->parameters().size(); ++i) {
    parameters_[unit->parameters()[i].second.unsafeGetTensorImpl()] = {unit, i};
  }
}

void ShardedModel::start_gathers(size_t segment) {
  for (Unit* unit : segment_units_[segment]) unit->start_gather();
}

void ShardedModel::finish_gathers(size_t segment) {
  for (Unit* unit : segment_units_[segment]) unit->finish_gather();
}

void ShardedModel::release_units(size_t segment) {
  for (Unit* unit : segment_units_[segment]) release(*unit);
}

at::Tensor ShardedModel::forward(const at::Tensor& input, size_t local_stage) {
  at::Tensor x = input;
  const auto [begin, end] = std::pair(virtual_stages_[local_stage].begin, virtual_stages_[local_stage].end);
  for (size_t i = begin; i < end; ++i) {
    const TraceSpan span("forward", segments_[i].name);
    gather_for_forward(i);
    x = run_segment(i, x);
    // The last segment's backward comes next: it stays.
    if (i + 1 < end || segments_[i].frozen || !at::GradMode::is_enabled()) release_units(i);
  }
  return x;
}

at::Tensor ShardedModel::run_segment(size_t index, at::Tensor input) {
  if (!at::GradMode::is_enabled() || segments_[index].frozen) {
    const at::NoGradGuard no_grad;
    return segments_[index].forward(input);
  }
  if (recompute_[index]) {
    // Behind frozen segments the input has no gradient; without one autograd would not come here.
    if (!input.requires_grad()) input = input.detach().set_requires_grad(true);
    return run_recomputed(c10::make_intrusive<RecomputedSegment>(*this, index), {input})[0];
  }
  at::Tensor output = segments_[index].forward(input);
  output.register_hook([this, index](const at::Tensor& gradient) {
    gather_for_backward(index);
    return gradient;
  });
  return output;
}

void ShardedModel::gather_for_forward(size_t index) {
  current_unit_ = segments_[index].name;
  finish_gathers(index);
  const size_t end = std::min(stage_with(index).end, index + 1 + static_cast<size_t>(prefetch_));
  for (size_t ahead = index + 1; ahead < end; ++ahead) start_gathers(ahead);
}

void ShardedModel::gather_for_backward(size_t index) {
  current_unit_ = segments_[index].name;
  if (trace_ != nullptr) trace_->begin_stretch("backward", current_unit_);
  stage_with(index).reductions->advance();
  finish_gathers(index);
  const size_t ahead = std::min(index - stage_with(index).trained, static_cast<size_t>(prefetch_));
  for (size_t distance = 1; distance <= ahead; ++distance) start_gathers(index - distance);
}

void ShardedModel::gradients_left(size_t unit) {
  if (prefetch_ == 0) units_[unit]->finish_reduce();
  release(*units_[unit]);
}

at::Tensor ShardedModel::gradient_memory(const at::Tensor& parameter) const {
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  return found == parameters_.end() ? at::Tensor() : found->second.unit->gradient_memory(found->second.index);
}

void ShardedModel::backward(const VirtualStageBackward& pass) {
  Reductions& reductions = *virtual_stages_[pass.local_stage].reductions;
  reductions.begin(pass.last);
  trace_ = current_trace();
  if (pass.output.requires_grad()) {
    const ops::GradientMemory places(
        [this](const at::Tensor& parameter) { return gradient_memory(parameter); });
    torch::autograd::backward({pass.output},
                              pass.gradient.defined() ? variable_list{pass.gradient} : variable_list{});
  }
  if (trace_ != nullptr) trace_->end_stretch();
  if (pass.passed) pass.passed();
  const TraceSpan span("reduce", "finish");
  reductions.finish();
  const VirtualStage& stage = virtual_stages_[pass.local_stage];
  for (size_t i = stage.begin; i < stage.trained; ++i) {
    for (Unit* unit : segment_units_[i]) unit->clear_gradient();
  }
}

void ShardedModel::abandon_backward() {
  for (const VirtualStage& stage : virtual_stages_) stage.reductions->abandon();
}

std::vector<NamedTensor> ShardedModel::buffers() const {
  std::vector<NamedTensor> all;
  for (const ShardedSegment& segment : segments_)
    all.insert(all.end(), segment.buffers.begin(), segment.buffers.end());
  return all;
}

void ShardedModel::average_buffers() {
  std::vector<at::Tensor> all;
  for (const auto& [name, buffer] : buffers()) all.push_back(buffer);
  average_over_ranks(all, stage_);
}

void ShardedModel::parameters_changed() {
  for (const auto& unit : units_) {
    unit->parameters_changed();
    if (!keeps_gradients_) unit->forget_gradient();  // the next forward's activations lie there
  }
}

at::Tensor ShardedModel::gradient_square_sum() const {
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(pool_.device()));
  // Replicas hold the same values; each counts 1/replicas of the squares. The padding is zero.
  const auto add = [&](const at::Tensor& square, int64_t replicas) {
    sum.add_(replicas == 1 ? square : square / static_cast<double>(replicas));
  };
  if (pool_.device().is_cpu() && ops::kernels_are_on()) {
    for (const auto& unit : units_) add(ops::square_sum(unit->gradient()), unit->replicas());
    return sum;
  }
  // Launches cost more than the sums; those of offloaded units are the host's.
  std::map<std::pair<int64_t, bool>, std::vector<at::Tensor>> alike;
  for (const auto& unit : units_)
    alike[{unit->replicas(), unit->gradient().is_cpu()}].push_back(unit->gradient());
  for (const auto& [kind, gradients] : alike) add(ops::square_sum(gradients), kind.first);
  return sum;
}

double ShardedModel::local_gradient_square_sum() const { return gradient_square_sum().item<double>(); }

}  // namespace tessera::shard
