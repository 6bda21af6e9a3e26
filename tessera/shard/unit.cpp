#include "tessera/shard/unit.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Adds without touching autograd's record of the destination.
void put(at::Tensor destination, const at::Tensor& source, bool add) {
  if (add) {
    destination.add_(source);
  } else {
    destination.copy_(source);
  }
}

}  // namespace

Unit::Unit(std::string name, std::vector<NamedTensor> parameters, plan::Level level, Precision precision,
           mesh::Group& shard, mesh::Group& replicate, BufferPool& pool)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      level_(level),
      precision_(precision),
      shard_(shard),
      replicate_(replicate),
      pool_(pool) {
  const at::NoGradGuard no_grad;
  splits_parameters_ = level_ == plan::Level::kZero3 && shard_.size() > 1;
  make_layout();
  adopt_parameters();
}

void Unit::make_layout() {
  for (const auto& [parameter_name, tensor] : parameters_) {
    offsets_.push_back(numel_);
    numel_ += tensor.numel();
  }
  // Also divisible over the replicas, whose sum splits the shard once more.
  const int64_t parts = shard_.size() * replicate_.size();
  padded_numel_ = (numel_ + parts - 1) / parts * parts;
  shard_numel_ = padded_numel_ / shard_.size();
  master_ = at::zeros({shard_numel_}, at::kFloat);
  gradient_ = at::zeros({shard_numel_}, at::kFloat);

  const int64_t shard_begin = shard_.rank() * shard_numel_, shard_end = shard_begin + shard_numel_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter_name, tensor] = parameters_[i];
    const int64_t first = std::clamp(shard_begin - offsets_[i], int64_t{0}, tensor.numel());
    const int64_t last = std::clamp(shard_end - offsets_[i], int64_t{0}, tensor.numel());
    const int64_t within = std::clamp(offsets_[i] + first - shard_begin, int64_t{0}, shard_numel_);
    pieces_.push_back({parameter_name, tensor.sizes().vec(), first, last,
                       master_.narrow(0, within, last - first), gradient_.narrow(0, within, last - first),
                       within});
  }
}

void Unit::adopt_parameters() {
  compute_shard_ = precision_.compute == at::kFloat ? master_ : at::empty({shard_numel_}, precision_.compute);
  // Alone, the shard is the whole: parameters are views of it and there is nothing to gather, ever.
  full_ = shard_.size() == 1 ? compute_shard_ : at::empty({padded_numel_}, precision_.compute);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].second;
    parameter.set_data(full_.narrow(0, offsets_[i], parameter.numel()).view(parameter.sizes()));
  }
  if (shard_.size() == 1) {
    state_ = State::kGathered;
  } else {
    storage_of(full_)->set_data_ptr_noswap(c10::DataPtr(nullptr, at::kCPU));
    storage_of(full_)->set_nbytes(0);
  }
}

void Unit::start_gather() {
  if (state_ != State::kSharded) return;
  const size_t bytes = static_cast<size_t>(padded_numel_) * full_.element_size();
  c10::DataPtr memory = pool_.take(bytes);
  // The collective writes through a tensor of its own: one made over the same storage would count as a change
  // of what autograd saved.
  at::Tensor target = at::from_blob(memory.get(), {padded_numel_}, full_.options());
  storage_of(full_)->set_data_ptr_noswap(std::move(memory));
  storage_of(full_)->set_nbytes(bytes);
  gather_ = shard_.all_gather(target, compute_shard_, name_);
  state_ = State::kGathering;
}

void Unit::finish_gather() {
  start_gather();
  if (state_ == State::kGathering) gather_.wait();
  state_ = State::kGathered;
}

void Unit::release() {
  if (splits_parameters_) free_gathered();
}

void Unit::free_gathered() {
  if (shard_.size() == 1 || state_ == State::kSharded) return;
  if (state_ == State::kGathering) gather_.wait();  // prefetched and not needed after all
  const size_t bytes = storage_of(full_)->nbytes();
  pool_.give_back(storage_of(full_)->set_data_ptr(c10::DataPtr(nullptr, at::kCPU)), bytes);
  storage_of(full_)->set_nbytes(0);
  state_ = State::kSharded;
}

void Unit::copy_gradients_to(at::Tensor flat, bool add) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].second;
    at::Tensor slot = flat.narrow(0, offsets_[i], parameter.numel());
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      put(slot, gradient.reshape({-1}), add);
      gradient.reset();
    } else if (!add) {
      slot.zero_();  // unused in this micro-batch
    }
  }
  if (!add && padded_numel_ > numel_) flat.narrow(0, numel_, padded_numel_ - numel_).zero_();
}

void Unit::start_reduce(bool last) {
  const at::NoGradGuard no_grad;
  last_micro_batch_ = last;
  if (shard_.size() == 1) {
    copy_gradients_to(gradient_, has_gradient_);
    has_gradient_ = true;
    return;
  }
  at::Tensor flat;
  if (level_ == plan::Level::kZero1) {
    if (!accumulated_.defined()) accumulated_ = at::empty({padded_numel_}, at::kFloat);
    copy_gradients_to(accumulated_, has_accumulated_);
    has_accumulated_ = !last;
    if (!last) return;
    flat = accumulated_.to(precision_.reduce);
  } else {
    flat = at::empty({padded_numel_}, precision_.reduce);
    copy_gradients_to(flat, false);
  }
  reduced_ = has_gradient_ ? at::empty_like(gradient_) : gradient_;
  reduce_ = shard_.reduce_scatter(reduced_, flat, name_);
}

void Unit::finish_reduce() {
  const at::NoGradGuard no_grad;
  if (reduce_.active()) {
    reduce_.wait();
    if (has_gradient_) gradient_.add_(reduced_);
    reduced_.reset();
    has_gradient_ = true;
  }
  if (last_micro_batch_) {
    sum_over_replicas();
    last_micro_batch_ = false;
  }
}

void Unit::sum_over_replicas() {
  if (replicate_.size() == 1) return;
  // Reduce-scatter, then gather: the minimum on the wire and the same bits on every replica.
  at::Tensor mine = at::empty({shard_numel_ / replicate_.size()}, at::kFloat);
  replicate_.reduce_scatter(mine, gradient_.to(precision_.reduce), name_).wait();
  replicate_.all_gather(gradient_, mine, name_).wait();
}

void Unit::parameters_changed() {
  const at::NoGradGuard no_grad;
  free_gathered();
  if (!compute_shard_.is_same(master_)) compute_shard_.copy_(master_);
  has_gradient_ = false;
}

}  // namespace tessera::shard
