// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/unit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/device/host_memory.h"
#include "tessera/shard/storage.h"
#include "tessera/shard/touch.h"

namespace tessera::shard {
namespace {

constexpr const char* kReleased =
    "[shard.released] a parameter of a sharded network is read while its memory is released (torch::save and "
    "data_ptr do so without an operation); save with library::save_module or ShardedModule::full_state_dict, "
    "read in the body given to forward() or with_full_parameters()";

/// A 1-D tensor that says it has memory, so that views of it can be made, and has none.
at::Tensor without_memory(int64_t numel, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return at::for_blob(nullptr, {numel}).options(options).target_device(options.device()).make_tensor();
  }
  const auto bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, at::kCPU),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  return at::empty({0}, options).set_(std::move(storage), 0, {numel});
}

/// Indices of the parameters in the order in which they lie in the flat tensor. Sorted by the largest power
/// of two, up to 64, that divides the number of elements: each parameter then begins at a multiple of its own
/// power, so a matrix whose rows are aligned begins aligned, without padding that would be stored and sent. A
/// bias of 37 elements that comes first would leave every matrix behind it at 2 bytes, where matrix products
/// on a GPU take the kernels for unaligned operands (they need 16 bytes). Parameters of multiples of 64, as
/// in nearly all ViTs, keep their order.
std::vector<size_t> aligned_order(const std::vector<NamedTensor>& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto power = [&](size_t i) { return std::gcd(parameters[i].second.numel(), int64_t{64}); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return power(a) > power(b); });
  return order;
}

Placement whole_placement(const at::Tensor& parameter) {
  return {parameter.sizes().vec(), {Box::whole(parameter.sizes().vec())}};
}

int64_t numel_of(const Placement& placement) {
  int64_t count = 0;
  for (const Box& box : placement.boxes) count += box.numel();
  return count;
}

/// What elements [first, last) of a parameter are of the whole tensor, box by box.
std::vector<Region> regions_of(const std::string& name, const Placement& placement, int64_t first,
                               int64_t last) {
  std::vector<Region> regions;
  for (const Box& box : placement.boxes) {
    TESSERA_CHECK(box.fits(placement.shape), name, ' ', to_string(box));
    const int64_t count = box.numel();
    regions.push_back({box, std::clamp(first, int64_t{0}, count), std::clamp(last, int64_t{0}, count)});
    first -= count;
    last -= count;
  }
  return regions;
}

}  // namespace

void over_regions(const Shard& shard, const at::Tensor& values,
                  const std::function<void(const Region&, const at::Tensor&)>& body) {
  int64_t position = 0;
  for (const Region& region : shard.regions) {
    body(region, values.narrow(0, position, region.numel()));
    position += region.numel();
  }
}

// (More than 5 parameters: the fields of a unit, of three owners.)
Unit::Unit(std::string name, UnitParameters parameters, plan::Level level, Precision precision,
           const UnitGroups& groups, BufferPool& pool, plan::Offload offload)
    : name_(std::move(name)),
      parameters_(std::move(parameters.tensors)),
      level_(level),
      precision_(precision),
      shard_(groups.shard),
      replicate_(groups.replicate),
      alone_(groups.tensor ? nullptr : std::make_unique<mesh::Group>(mesh::GroupName{}, 0, 1, nullptr)),
      tensor_(groups.tensor ? groups.tensor : alone_.get()),
      pool_(pool),
      offload_(offload) {
  const at::NoGradGuard no_grad;
  stays_ = shard_.size() == 1 && offload_ != plan::Offload::kAll;
  splits_parameters_ = level_ == plan::Level::kZero3 && !stays_;
  taken_.resize(parameters_.size());
  placed_.resize(parameters_.size());
  make_layout(parameters.placements);
  adopt_parameters();
}

/// Of tensors where units compute.
at::TensorOptions Unit::here(at::ScalarType dtype) const {
  return at::TensorOptions(dtype).device(pool_.device());
}

/// [shard_numel] zeros where the state lies.
at::Tensor Unit::state_tensor(at::ScalarType dtype) const {
  return offloads() ? device::host_tensor(shard_numel_, dtype) : at::zeros({shard_numel_}, here(dtype));
}

/// Memory of the size and dtype of `like`, where units compute, that goes when the tensor dies.
at::Tensor Unit::scratch(const at::Tensor& like) {
  return pool_.tensor(like.numel(), full_.options().dtype(like.scalar_type()));
}

/// Offloaded state, copied to where units compute; other state as it is.
at::Tensor Unit::fetched(const at::Tensor& state) {
  return offloads() ? scratch(state).copy_(state, /*non_blocking=*/true) : state;
}

/// Adds, or copies, without touching autograd's record of the destination. They may lie on different devices;
/// what is copied to the host's memory is there after copies_.wait().
void Unit::put(at::Tensor destination, const at::Tensor& source, bool add) {
  if (add) {
    copies_.wait();
    destination.add_(source.to(destination.device()));
  } else {
    copies_.copy(destination, source);
  }
}

int64_t Unit::offloaded_bytes() const {
  if (!offloads()) return 0;
  const bool shard_too = offload_ == plan::Offload::kAll && !compute_shard_.is_same(master_);
  return static_cast<int64_t>(master_.nbytes() + gradient_.nbytes() +
                              (shard_too ? compute_shard_.nbytes() : 0));
}

void Unit::make_layout(const std::vector<std::optional<Placement>>& placements) {
  TESSERA_CHECK(placements.empty() || placements.size() == parameters_.size(), name_);
  offsets_.resize(parameters_.size());
  for (const size_t i : aligned_order(parameters_)) {
    offsets_[i] = numel_;
    numel_ += parameters_[i].second.numel();
  }
  // Also divisible over the replicas, whose sum splits the shard once more.
  const int64_t parts = shard_.size() * replicate_.size();
  padded_numel_ = (numel_ + parts - 1) / parts * parts;
  shard_numel_ = padded_numel_ / shard_.size();
  master_ = state_tensor(precision_.master);

  const int64_t shard_begin = shard_.rank() * shard_numel_, shard_end = shard_begin + shard_numel_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter_name, tensor] = parameters_[i];
    const int64_t first = std::clamp(shard_begin - offsets_[i], int64_t{0}, tensor.numel());
    const int64_t last = std::clamp(shard_end - offsets_[i], int64_t{0}, tensor.numel());
    const int64_t within = std::clamp(offsets_[i] + first - shard_begin, int64_t{0}, shard_numel_);
    const Placement place = placements.empty() || !placements[i] ? whole_placement(tensor) : *placements[i];
    shards_.push_back({parameter_name, place.shape, regions_of(parameter_name, place, first, last),
                       master_.narrow(0, within, last - first), at::Tensor(), within});
    TESSERA_CHECK_EQ(numel_of(place), tensor.numel());
  }
  if (offloads()) hold_gradient();
}

void Unit::hold_gradient() {
  if (gradient_.defined()) return;
  if (offloads()) return set_gradient(device::host_tensor(shard_numel_, precision_.sum));
  const bool alone = shard_.size() == 1 && replicate_.size() == 1;
  const bool nothing_is_added = alone && last_micro_batch_ && !has_gradient_ && !previous_.defined();
  const bool as_made = as_made_ && nothing_is_added;  // AdamW's kernels read it
  set_gradient(at::empty({shard_numel_}, here(as_made ? precision_.compute : precision_.sum)));
}

void Unit::clear_gradient() {
  hold_gradient();
  gradient_.zero_();
}

void Unit::set_gradient(at::Tensor gradient) {
  gradient_ = std::move(gradient);
  for (Shard& shard : shards_) {
    shard.gradient = gradient_.narrow(0, shard.unit_offset, shard.master.numel());
  }
}

void Unit::forget_gradient() {
  if (offloads()) return;  // pages pinned for a device are dear, and no activation could use them
  gradient_.reset();
  for (Shard& shard : shards_) shard.gradient.reset();
}

void Unit::adopt_parameters() {
  const bool same = precision_.compute == precision_.master;
  if (offload_ == plan::Offload::kAll) {
    compute_shard_ = same ? master_ : state_tensor(precision_.compute);
  } else {
    compute_shard_ = same && !offloads() ? master_ : at::empty({shard_numel_}, here(precision_.compute));
  }
  // Alone, the shard is the whole: parameters are views of it and there is nothing to gather, ever.
  full_ = stays_ ? compute_shard_ : without_memory(padded_numel_, here(precision_.compute));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].second;
    parameter.set_data(full_.narrow(0, offsets_[i], parameter.numel()).view(parameter.sizes()));
  }
  if (stays_) {
    state_ = State::kGathered;
  } else {
    storage_of(full_)->set_nbytes(0);
  }
}

void Unit::set_values(const std::vector<at::Tensor>& values, std::optional<bool> counts) {
  const at::NoGradGuard no_grad;
  if (!counts || (shard_.size() == 1 && replicate_.size() == 1)) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const Shard& shard = shards_[i];
      at::Tensor master = shard.master;
      if (master.numel() == 0) continue;
      const int64_t first = shard_.rank() * shard_numel_ + shard.unit_offset - offsets_[i];
      master.copy_(values[i].reshape({-1}).narrow(0, first, master.numel()));
    }
  } else {
    // A sum in which all others add zeros: every rank receives its shard and no more.
    at::Tensor flat = at::zeros({padded_numel_}, here(precision_.master));
    for (size_t i = 0; *counts && i < values.size(); ++i) {
      flat.narrow(0, offsets_[i], values[i].numel()).copy_(values[i].reshape({-1}));
    }
    const at::Tensor values_of_shard = offloads() ? scratch(master_) : master_;
    shard_.reduce_scatter(values_of_shard, flat, precision_.master, name_).wait();
    if (replicate_.size() > 1) {
      at::Tensor part = at::empty({shard_numel_ / replicate_.size()}, here(precision_.master));
      replicate_.reduce_scatter(part, values_of_shard, precision_.master, name_).wait();
      replicate_.all_gather(values_of_shard, part, name_).wait();
    }
    if (offloads()) master_.copy_(values_of_shard);
  }
  parameters_changed();
}

at::Tensor Unit::watch_use() {
  for (auto& [parameter_name, parameter] : parameters_) set_touch_key(parameter);
  refuses_reads_ = true;
  refuse_reads(storage_of(full_), kReleased);
  return full_;
}

bool Unit::start_gather() {
  if (state_ != State::kSharded) return false;
  const size_t bytes = static_cast<size_t>(padded_numel_) * full_.element_size();
  c10::DataPtr memory = pool_.take(bytes);
  // The collective writes through a tensor of its own: one made over the same storage would count as a change
  // of what autograd saved.
  at::Tensor target = at::for_blob(memory.get(), {padded_numel_})
                          .options(full_.options())
                          .target_device(pool_.device())
                          .make_tensor();
  if (refuses_reads_) allow_reads(storage_of(full_));
  storage_of(full_)->set_data_ptr_noswap(std::move(memory));
  storage_of(full_)->set_nbytes(bytes);
  const bool travels = offload_ == plan::Offload::kAll && shard_.size() > 1;  // alone it is copied at once
  gather_ = shard_.all_gather(target, travels ? fetched(compute_shard_) : compute_shard_, name_);
  state_ = State::kGathering;
  return true;
}

void Unit::finish_gather() {
  start_gather();
  if (state_ == State::kGathering) gather_.wait();
  state_ = State::kGathered;
  if (refuses_reads_) allow_reads(storage_of(full_));
}

void Unit::hide() {
  if (refuses_reads_) refuse_reads(storage_of(full_), kReleased);
}

void Unit::release() {
  if (splits_parameters_) free_gathered();
}

void Unit::free_gathered() {
  if (stays_ || state_ == State::kSharded) return;
  if (state_ == State::kGathering) gather_.wait();  // prefetched and not needed after all
  const size_t bytes = storage_of(full_)->nbytes();
  pool_.give_back(storage_of(full_)->set_data_ptr(c10::DataPtr(nullptr, pool_.device())), bytes);
  storage_of(full_)->set_nbytes(0);
  if (refuses_reads_) refuse_reads(storage_of(full_), kReleased);
  state_ = State::kSharded;
}

void Unit::begin_gradient(bool keep, double divisor) {
  copies_.wait();
  previous_ = keep ? gradient_.clone() : at::Tensor();
  divisor_ = divisor;
  has_gradient_ = has_accumulated_ = summed_ = false;
}

bool Unit::collects_locally() const {
  return level_ == plan::Level::kZero1 || (accumulate_locally_ && (has_accumulated_ || !last_micro_batch_));
}

/// Where the gradients of a micro-batch go, and whether those of earlier ones are there.
at::Tensor& Unit::collected_gradients(bool* hold_earlier) {
  if (shard_.size() == 1) {
    hold_gradient();
    *hold_earlier = has_gradient_;
    return gradient_;
  }
  if (collects_locally()) {
    if (!accumulated_.defined()) accumulated_ = at::empty({padded_numel_}, here(precision_.sum));
    *hold_earlier = has_accumulated_;
    return accumulated_;
  }
  if (!collected_.defined()) collected_ = pool_.tensor(padded_numel_, full_.options());
  *hold_earlier = false;
  return collected_;
}

void Unit::abandon_backward() {
  const at::NoGradGuard no_grad;
  while (reducing()) advance_reduce_stage();
  for (auto& [parameter_name, parameter] : parameters_) parameter.mutable_grad().reset();
  taken_.assign(taken_.size(), false);
  placed_.assign(placed_.size(), false);
  collected_.reset();
  accumulated_.reset();
  waiting_.clear();
  copies_.wait();
  if (previous_.defined()) gradient_.copy_(previous_);
  previous_.reset();
  has_gradient_ = has_accumulated_ = summed_ = false;
}

at::Tensor Unit::slot_of(const at::Tensor& collected, size_t index) const {
  return collected.narrow(0, offsets_[index], parameters_[index].second.numel());
}

at::Tensor Unit::gradient_memory(size_t index) {
  const at::Tensor& parameter = parameters_[index].second;
  // One at a time: of two gradients of a parameter the second would be made over the first.
  if (taken_[index] || placed_[index] || summed_ || parameter.grad().defined()) return {};
  if (!parameter.requires_grad()) return {};  // nobody would take it
  const at::NoGradGuard no_grad;
  bool hold_earlier = false;
  const at::Tensor& collected = collected_gradients(&hold_earlier);
  if (hold_earlier || collected.options().dtype() != parameter.options().dtype() ||
      collected.device() != parameter.device())
    return {};
  placed_[index] = true;
  return slot_of(collected, index).view(parameter.sizes());
}

bool Unit::awaits_gradient() const {
  return std::find(placed_.begin(), placed_.end(), true) != placed_.end();
}

/// Copies or adds a gradient to its slot: at once, or where a device's kernel copies many in one launch with
/// make_copies(), until which the unit keeps the gradient.
void Unit::collect(const at::Tensor& slot, const at::Tensor& gradient, bool add) {
  if (!ops::has_copy_runs({slot, gradient})) return put(slot, gradient, add);
  if (!waiting_.empty() && (waiting_adds_ != add || waiting_[0].from.dtype() != gradient.dtype() ||
                            waiting_[0].to.dtype() != slot.dtype())) {
    make_copies();
  }
  waiting_adds_ = add;
  waiting_.push_back({slot, gradient});
}

void Unit::make_copies() {
  ops::copy_runs(waiting_, waiting_adds_);
  waiting_.clear();
}

void Unit::take_gradient(size_t index) {
  at::Tensor& parameter = parameters_[index].second;
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  if (summed_) set_gradient_aside();
  // What is added to is a sum.
  const bool adds = shard_.size() == 1 && (has_gradient_ || taken_[index]);
  if (adds && gradient_.scalar_type() != precision_.sum) {
    make_copies();
    set_gradient(gradient_.to(precision_.sum));
  }
  bool add = false;
  const at::Tensor slot = slot_of(collected_gradients(&add), index);
  const bool is_there = placed_[index] && gradient.data_ptr() == slot.data_ptr();
  if (!is_there && taken_[index]) make_copies();  // it is added to the first
  if (!is_there) collect(slot, gradient.reshape({-1}), add || taken_[index]);
  gradient.reset();
  placed_[index] = false;
  taken_[index] = true;
}

void Unit::start_reduce() {
  const at::NoGradGuard no_grad;
  if (summed_) set_gradient_aside();
  bool hold_earlier = false;
  at::Tensor& collected = collected_gradients(&hold_earlier);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    take_gradient(i);
    if (!taken_[i] && !hold_earlier) {
      collected.narrow(0, offsets_[i], parameters_[i].second.numel()).zero_();  // unused so far
    }
    taken_[i] = false;
  }
  make_copies();
  if (!hold_earlier && padded_numel_ > numel_) collected.narrow(0, numel_, padded_numel_ - numel_).zero_();
  if (shard_.size() == 1) {
    has_gradient_ = true;
    sum_over_replicas();
    return;
  }
  has_accumulated_ = collects_locally() && !last_micro_batch_;
  if (has_accumulated_) return;
  while (reducing()) advance_reduce_stage();
  hold_gradient();
  reduced_ = offloads() ? scratch(gradient_) : has_gradient_ ? at::empty_like(gradient_) : gradient_;
  const at::Tensor input = std::exchange(collected, {});  // freed when its last piece is sent
  reduce_ = shard_.reduce_scatter(reduced_, input, precision_.reduce, name_);
  stage_ = Stage::kShards;
}

/// With the last micro-batch: starts the sum of gradient() over the replicas. Reduce-scatter, then gather:
/// the minimum on the wire and the same bits on every replica.
void Unit::sum_over_replicas() {
  stage_ = Stage::kNone;
  if (!last_micro_batch_ || replicate_.size() == 1) return;
  summed_ = true;
  replica_part_ = at::empty({shard_numel_ / replicate_.size()}, here(precision_.sum));
  copies_.order();
  reduce_ = replicate_.reduce_scatter(replica_part_, fetched(gradient_), precision_.reduce, name_);
  stage_ = Stage::kReplicas;
}

void Unit::advance_reduce_stage() {
  const at::NoGradGuard no_grad;
  reduce_.wait();
  switch (stage_) {
    case Stage::kShards:
      if (!reduced_.is_same(gradient_)) put(gradient_, reduced_, has_gradient_);
      reduced_.reset();
      has_gradient_ = true;
      sum_over_replicas();
      break;
    case Stage::kReplicas:
      // Sums travel back as they came. Each rank takes its own part from what travels as well, so all hold
      // the same bits.
      replica_part_ = replica_part_.to(precision_.reduce);
      reduced_ = offloads() || precision_.reduce != precision_.sum
                     ? pool_.tensor(shard_numel_, full_.options().dtype(precision_.reduce))
                     : gradient_;
      reduce_ = replicate_.all_gather(reduced_, replica_part_, name_);
      stage_ = Stage::kCopies;
      break;
    case Stage::kCopies:
      if (!reduced_.is_same(gradient_)) put(gradient_, reduced_, /*add=*/false);
      reduced_.reset();
      [[fallthrough]];
    case Stage::kNone:
      replica_part_.reset();
      stage_ = Stage::kNone;
      break;
  }
}

/// Gradients arrive after the sum over the ranks was complete: they are summed on their own and added to it.
void Unit::set_gradient_aside() {
  while (reducing()) advance_reduce_stage();
  copies_.wait();
  at::Tensor complete = gradient_.to(precision_.sum, /*non_blocking=*/false, /*copy=*/true);
  if (gradient_.scalar_type() != precision_.sum) set_gradient(at::empty_like(complete));
  if (divisor_ != 1) complete.div_(divisor_);
  if (previous_.defined()) complete.add_(previous_);
  previous_ = std::move(complete);
  has_gradient_ = summed_ = false;
}

void Unit::finish_reduce() {
  const at::NoGradGuard no_grad;
  while (reducing()) advance_reduce_stage();
  copies_.wait();
  if (!last_micro_batch_) return;
  if (divisor_ != 1) gradient_.div_(divisor_);
  if (previous_.defined()) gradient_.add_(previous_);
  previous_.reset();
  divisor_ = 1;
  summed_ = true;
}

at::Tensor Unit::values_to_write() {
  if (compute_shard_.is_same(master_) || compute_shard_.device() != master_.device()) return {};
  free_gathered();  // a gather under way reads them
  copy_is_written_ = true;
  return compute_shard_;
}

void Unit::parameters_changed() {
  const at::NoGradGuard no_grad;
  free_gathered();
  if (!compute_shard_.is_same(master_) && !copy_is_written_) compute_shard_.copy_(master_);
  has_gradient_ = summed_ = copy_is_written_ = false;
}

}  // namespace tessera::shard
