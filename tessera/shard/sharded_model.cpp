#include "tessera/shard/sharded_model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using torch::autograd::variable_list;

/// Calls back when a parameter's gradient has been accumulated.
class GradientAccumulated : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientAccumulated(std::function<void()> callback) : callback_(std::move(callback)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    callback_();
    return outputs;
  }

 private:
  std::function<void()> callback_;
};

}  // namespace

/// Activation checkpointing (Chen et al., arXiv 1604.06174): forward keeps only the input; backward runs the
/// part again and differentiates that.
class ShardedModel::RecomputedPart : public torch::autograd::Function<RecomputedPart> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            ShardedModel* model, int64_t index) {
    context->save_for_backward({input});
    context->saved_data["model"] = reinterpret_cast<int64_t>(model);
    context->saved_data["index"] = index;
    return model->parts_[static_cast<size_t>(index)].forward(input);
  }

  static variable_list backward(torch::autograd::AutogradContext* context, variable_list output_gradients) {
    auto* model = reinterpret_cast<ShardedModel*>(context->saved_data["model"].toInt());
    const auto index = static_cast<size_t>(context->saved_data["index"].toInt());
    at::Tensor input = context->get_saved_variables()[0].detach();
    input.set_requires_grad(true);
    model->gather_for_backward(index);
    {
      const at::AutoGradMode with_gradients(true);
      const at::Tensor output = model->parts_[index].forward(input);
      torch::autograd::backward({output}, {output_gradients[0]});
    }
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

ShardedModel::ShardedModel(std::vector<Part> parts, const plan::Plan& plan, Precision precision,
                           mesh::Mesh& mesh)
    : parts_(std::move(parts)), prefetch_(plan.prefetch) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto unit_plan =
        std::find_if(plan.units.begin(), plan.units.end(),
                     [&](const plan::UnitPlan& unit) { return unit.name == parts_[i].name; });
    TESSERA_CHECK(unit_plan != plan.units.end(), "no unit ", parts_[i].name, " in the plan");
    TESSERA_CHECK(i > 0 || !unit_plan->recompute, "the first part's input has no gradient to recompute for");
    recompute_.push_back(unit_plan->recompute);
    const bool replicated = unit_plan->level == plan::Level::kReplicate;
    mesh::Group& shard_group = replicated ? mesh.group("") : mesh.group("shard");
    mesh::Group& replicate_group = replicated ? mesh.world() : mesh.group("dp");
    units_.push_back(std::make_unique<Unit>(parts_[i].name, parts_[i].parameters, unit_plan->level, precision,
                                            shard_group, replicate_group, pool_));
    watch_gradients(i);
  }
  gradients_missing_ = gradients_expected_;
}

ShardedModel::~ShardedModel() = default;

void ShardedModel::watch_gradients(size_t index) {
  int64_t expected = 0;
  const auto& parameters = units_[index]->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].second.requires_grad()) continue;
    ++expected;
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].second);
    accumulator->add_post_hook(std::make_unique<GradientAccumulated>([this, index, i] {
      units_[index]->take_gradient(i);
      advance_reduction();
      if (--gradients_missing_[index] == 0) gradients_ready(index);
    }));
    accumulators_.push_back(accumulator);  // the parameter itself holds it only weakly
  }
  gradients_expected_.push_back(expected);
}

at::Tensor ShardedModel::forward(const at::Tensor& input) {
  at::Tensor x = input;
  for (size_t i = 0; i < parts_.size(); ++i) {
    gather_for_forward(i);
    x = run_part(i, x);
    // The last part's backward comes next: it stays.
    if (i + 1 < parts_.size() || !at::GradMode::is_enabled()) units_[i]->release();
  }
  return x;
}

at::Tensor ShardedModel::run_part(size_t index, const at::Tensor& input) {
  if (!at::GradMode::is_enabled()) return parts_[index].forward(input);
  if (recompute_[index]) {
    TESSERA_CHECK(input.requires_grad(), parts_[index].name);
    return RecomputedPart::apply(input, this, static_cast<int64_t>(index));
  }
  at::Tensor output = parts_[index].forward(input);
  output.register_hook([this, index](const at::Tensor& gradient) {
    gather_for_backward(index);
    return gradient;
  });
  return output;
}

void ShardedModel::gather_for_forward(size_t index) {
  current_unit_ = units_[index]->name();
  units_[index]->finish_gather();
  const size_t end = std::min(units_.size(), index + 1 + static_cast<size_t>(prefetch_));
  for (size_t ahead = index + 1; ahead < end; ++ahead) units_[ahead]->start_gather();
}

void ShardedModel::gather_for_backward(size_t index) {
  current_unit_ = units_[index]->name();
  advance_reduction();
  units_[index]->finish_gather();
  const size_t ahead = std::min(index, static_cast<size_t>(prefetch_));
  for (size_t distance = 1; distance <= ahead; ++distance) units_[index - distance]->start_gather();
}

void ShardedModel::advance_reduction() {
  if (unit_in_reduction_ >= 0) units_[static_cast<size_t>(unit_in_reduction_)]->advance_reduce();
}

void ShardedModel::gradients_ready(size_t index) {
  // One reduction under way at a time bounds the memory of unreduced gradients.
  if (unit_in_reduction_ >= 0) units_[static_cast<size_t>(unit_in_reduction_)]->finish_reduce();
  units_[index]->start_reduce(last_micro_batch_);
  units_[index]->advance_reduce();
  units_[index]->release();
  unit_in_reduction_ = static_cast<int64_t>(index);
}

void ShardedModel::backward(const at::Tensor& loss, bool last) {
  last_micro_batch_ = last;
  gradients_missing_ = gradients_expected_;
  torch::autograd::backward({loss}, {});
  // Units with parameters that this loss does not depend on still take part in the sum.
  for (size_t i = units_.size(); i-- > 0;) {
    if (gradients_missing_[i] > 0) gradients_ready(i);
  }
  if (unit_in_reduction_ >= 0) units_[static_cast<size_t>(unit_in_reduction_)]->finish_reduce();
  unit_in_reduction_ = -1;
}

void ShardedModel::parameters_changed() {
  for (const auto& unit : units_) unit->parameters_changed();
}

double ShardedModel::local_gradient_square_sum() const {
  double sum = 0;
  for (const auto& unit : units_) {
    // Replicas hold the same values; each counts its part. The padding is zero.
    const at::Tensor gradient = unit->gradient();
    sum += at::dot(gradient, gradient).item<double>() / static_cast<double>(unit->replicas());
  }
  return sum;
}

}  // namespace tessera::shard
