// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/step_recording.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/shard/whole_tensor.h"

namespace tessera::train {
namespace {

/// In the order of the batch: of the loader's contract, ranks one after another, each with its micro-batches.
std::vector<RecordedRows> in_order(std::vector<RecordedRows> rows) {
  std::ranges::sort(rows, {}, [](const RecordedRows& one) { return std::pair(one.rank, one.micro_batch); });
  return rows;
}

/// The order that sorts the samples of all rows; equal ones stay as they are.
at::Tensor order_of(const std::vector<uint64_t>& samples) {
  std::vector<int64_t> order(samples.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return samples[static_cast<size_t>(i)]; });
  return at::tensor(order, at::kLong);
}

std::vector<uint64_t> samples_of(const std::vector<RecordedRows>& rows) {
  std::vector<uint64_t> samples;
  for (const RecordedRows& one : rows) samples.insert(samples.end(), one.samples.begin(), one.samples.end());
  return samples;
}

at::Tensor as_tensor(const std::vector<uint64_t>& samples) {
  const std::vector<int64_t> numbers(samples.begin(), samples.end());
  return at::tensor(numbers, at::kLong);
}

/// Values of all rows in the order of their samples.
at::Tensor joined(const std::vector<RecordedRows>& given) {
  const std::vector<RecordedRows> rows = in_order(given);
  const std::vector<uint64_t> samples = samples_of(rows);
  const bool samples_alone = std::ranges::none_of(rows, [](const auto& one) { return one.values.defined(); });
  if (samples_alone) return as_tensor(samples).index_select(0, order_of(samples));
  std::vector<at::Tensor> parts;
  for (const RecordedRows& one : rows) parts.push_back(one.values);
  return at::cat(parts).index_select(0, order_of(samples));
}

}  // namespace

StepRecording::StepRecording(const arch::ModelConfig& config) {
  int64_t place = 0;
  for (const std::string& unit : arch::unit_names(config)) places_.emplace(unit, place++);
  for (const auto& spec : arch::parameters(config)) places_.emplace(spec.name, place++);
  for (const auto& buffer : arch::buffers(config)) places_.emplace(buffer.name, place++);
}

StepRecording::Entry& StepRecording::entry(int64_t step, TensorKind kind, const std::string& name) {
  const auto found = places_.find(name);
  TESSERA_CHECK(name.empty() || found != places_.end(), name, " is not in the model");
  const int64_t place = name.empty() ? 0 : found->second;
  Entry& one = entries_[{step, kind, kind == TensorKind::kGradient ? -place : place}];
  one.name = name;
  return one;
}

void StepRecording::add_rows(int64_t step, const std::string& segment, RecordedRows rows) {
  const std::lock_guard lock(mutex_);
  const TensorKind kind = segment.empty() ? TensorKind::kSamples : TensorKind::kOutput;
  entry(step, kind, segment).rows.push_back(std::move(rows));
}

void StepRecording::add_shards(int64_t step, TensorKind kind, const shard::ShardedModel& model, int64_t rank,
                               double scale) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (const auto& unit : model.units()) {
    for (const shard::Shard& shard : unit->shards()) {
      Entry& one = entry(step, kind, shard.name);
      const bool is_gradient = kind == TensorKind::kGradient;
      const at::Tensor values =
          is_gradient ? shard.gradient.to(at::kCPU, at::kDouble).div(scale) : shard.master.to(at::kCPU);
      if (!one.whole.defined()) {
        one.whole = at::zeros(shard.shape, values.options());
        one.written = at::zeros(shard.shape, at::kBool);
      }
      const at::Tensor mine = at::zeros_like(one.whole), is_mine = at::zeros_like(one.written);
      shard::copy_to_whole(shard, values, mine);
      shard::copy_to_whole(shard, at::ones(values.sizes(), at::kBool), is_mine);
      const at::Tensor both = is_mine.logical_and(one.written),
                       is_nan = mine.isnan().logical_and(one.whole.isnan());
      const int64_t different =
          both.logical_and(mine.ne(one.whole)).logical_and(is_nan.logical_not()).sum().item<int64_t>();
      if (different > 0 && one.fault.empty())
        one.fault =
            concat("rank ", rank, " holds ", different, " other values than ranks with the same elements");
      one.whole = at::where(one.written, one.whole, mine);
      one.written.logical_or_(is_mine);
    }
  }
}

void StepRecording::add_whole(int64_t step, TensorKind kind, const std::string& name,
                              const at::Tensor& values) {
  const std::lock_guard lock(mutex_);
  entry(step, kind, name).whole = values.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

RecordedTensor StepRecording::finished(const Key& key, const Entry& entry) {
  RecordedTensor tensor{std::get<0>(key), std::get<1>(key), entry.name, entry.whole, entry.fault};
  if (!entry.rows.empty()) tensor.values = joined(entry.rows);
  if (entry.written.defined() && tensor.fault.empty()) {
    const int64_t missing = entry.written.logical_not().sum().item<int64_t>();
    if (missing > 0) tensor.fault = concat("no rank holds ", missing, " of its elements");
  }
  return tensor;
}

std::vector<RecordedTensor> StepRecording::tensors() const {
  const at::NoGradGuard no_grad;
  std::vector<RecordedTensor> all;
  for (const auto& [key, entry] : entries_) all.push_back(finished(key, entry));
  return all;
}

}  // namespace tessera::train
