// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/square_sum.h"
#include "tessera/shard/clip.h"
#include "tessera/shard/engine.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/touch.h"

namespace tessera::shard {
namespace {

/// Of each tensor the sum of its values' squares; 0 for an undefined one. Waits for a GPU once.
std::vector<double> square_sums(const std::vector<at::Tensor>& tensors) {
  const WithoutTouch by_this_module;
  std::vector<double> sums(tensors.size());
  std::vector<at::Tensor> queued;
  std::vector<size_t> places;  // of these
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].numel() == 0) continue;
    const at::Tensor sum = ops::square_sum(tensors[i]);
    if (sum.is_cpu()) {
      sums[i] = sum.item<double>();
    } else {
      queued.push_back(sum);
      places.push_back(i);
    }
  }
  if (queued.empty()) return sums;
  const at::Tensor known = at::stack(queued).to(at::kCPU);
  for (size_t i = 0; i < places.size(); ++i) sums[places[i]] = known.const_data_ptr<double>()[i];
  return sums;
}

}  // namespace

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, mesh::Mesh& mesh,
                             FullyShardOptions options)
    : ShardedModule(std::move(module), UnitBuilder(mesh, std::move(options))) {}

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module, UnitBuilder&& builder)
    : engine_(std::move(builder.engine_)) {
  engine_->finish_building(std::move(module));
}

ShardedModule::~ShardedModule() = default;
ShardedModule::ShardedModule(ShardedModule&&) noexcept = default;
ShardedModule& ShardedModule::operator=(ShardedModule&&) noexcept = default;

ShardedModule::ForwardScope::ForwardScope(ShardedModule& sharded) : engine_(*sharded.engine_) {
  engine_.begin_forward();
}

ShardedModule::ForwardScope::~ForwardScope() { engine_.end_forward(); }

void ShardedModule::set_micro_batch(int64_t index, int64_t count) { engine_->set_micro_batch(index, count); }

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const ParameterShard& shard : engine_->shards()) {
    if (shard.trainable) tensors.push_back(shard.values);
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> ShardedModule::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const ParameterShard& shard : engine_->shards()) {
    if (shard.trainable) named.emplace_back(shard.name, shard.values);
  }
  return named;
}

const std::vector<ParameterShard>& ShardedModule::shards() const { return engine_->shards(); }

double ShardedModule::grad_norm() {
  std::vector<at::Tensor> gradients;
  for (const ParameterShard& shard : engine_->shards()) {
    if (shard.trainable && !shard.replica) gradients.push_back(shard.values.grad());
  }
  const std::vector<double> sums = square_sums(gradients);
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  at::Tensor total = at::full({1}, sum, at::kDouble);
  engine_->sum_over_ranks(total, "gradient norm");
  return std::sqrt(total.item<double>());
}

double ShardedModule::clip_grad_norm(double max_norm) {
  const double norm = grad_norm();
  const double scale = clip_scale(max_norm, norm);
  if (scale < 1) {
    const at::NoGradGuard no_grad;
    for (const ParameterShard& shard : engine_->shards()) {
      if (shard.trainable && shard.values.grad().defined()) shard.values.grad().mul_(scale);
    }
  }
  return norm;
}

at::Tensor ShardedModule::tensor_norms(const std::vector<at::Tensor>& local) {
  std::vector<const ParameterShard*> trainable;
  for (const ParameterShard& shard : engine_->shards()) {
    if (shard.trainable) trainable.push_back(&shard);
  }
  if (local.empty() || trainable.empty() || local.size() % trainable.size() != 0) {
    user_error({.where = "shard.tensor_norms",
                .problem = concat(local.size(), " tensors are given for ", trainable.size(), " parameters"),
                .expected = "one tensor for each of parameters()"});
  }
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < local.size(); ++i) {
    const ParameterShard& shard = *trainable[i % trainable.size()];
    if (local[i].defined() && local[i].numel() != shard.end - shard.begin) {
      user_error(
          {.where = "shard.tensor_norms",
           .problem = concat("tensor ", i, " has ", local[i].numel(), " elements"),
           .expected = concat(shard.end - shard.begin, ", the size of the local shard of ", shard.name),
           .hint = "give the tensors in the order of parameters()"});
    }
    counted.push_back(shard.replica ? at::Tensor() : local[i]);
  }
  at::Tensor totals = at::tensor(square_sums(counted), at::kDouble);
  engine_->sum_over_ranks(totals, "norms of tensors");
  return totals.sqrt_();
}

void ShardedModule::average_buffers() { engine_->average_buffers(); }

void ShardedModule::parameters_changed() { engine_->parameters_changed(); }

void ShardedModule::with_full_parameters(const std::function<void()>& body, bool write_back) {
  engine_->with_full_parameters(body, write_back);
}

StateDict ShardedModule::full_state_dict() { return engine_->full_state_dict(); }
void ShardedModule::load_full_state_dict(const StateDict& state) { engine_->load_full_state_dict(state); }
StateDict ShardedModule::whole_parameters() const { return engine_->whole_parameters(); }
void ShardedModule::unshard(const std::string& unit) { engine_->stay_gathered(unit, true); }
void ShardedModule::reshard(const std::string& unit) { engine_->stay_gathered(unit, false); }

ShardedModule::NoSync::NoSync(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
  engine_->change_no_sync(1);
}
ShardedModule::NoSync::~NoSync() { engine_->change_no_sync(-1); }
ShardedModule::NoSync ShardedModule::no_sync() { return NoSync(engine_); }

at::Tensor ShardedModule::cast(const at::Tensor& input) const {
  return at::isFloatingType(input.scalar_type()) ? input.to(engine_->compute_dtype()) : input;
}

const std::shared_ptr<torch::nn::Module>& ShardedModule::module() const { return engine_->module(); }
mesh::Mesh& ShardedModule::mesh() const { return engine_->mesh(); }
std::vector<UnitFacts> ShardedModule::units() const { return engine_->facts(); }
int64_t ShardedModule::step() const { return engine_->step(); }

UnitBuilder::UnitBuilder(mesh::Mesh& mesh, FullyShardOptions options)
    : engine_(std::make_shared<ShardedModule::Engine>(mesh, std::move(options))) {}

UnitBuilder::~UnitBuilder() = default;
UnitBuilder::UnitBuilder(UnitBuilder&&) noexcept = default;
UnitBuilder& UnitBuilder::operator=(UnitBuilder&&) noexcept = default;

void UnitBuilder::shard_now(torch::nn::Module& module, const std::string& name, const UnitOptions& unit) {
  if (unit.recompute) {
    user_error({.where = "shard.shard_now",
                .problem = concat(name, " cannot be recomputed, because it is sharded manually"),
                .hint = "write shard::recompute where it is called"});
  }
  auto parameters = engine_->untaken(module, name);
  if (!parameters.empty()) engine_->add_unit(name, std::move(parameters), unit, /*is_root=*/false);
}

}  // namespace tessera::shard
