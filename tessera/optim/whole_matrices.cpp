// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/whole_matrices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

/// What of a tensor is in the box. A view.
at::Tensor boxed(const at::Tensor& tensor, const Box& box) {
  at::Tensor view = tensor;
  for (size_t dim = 0; dim < box.dims.size(); ++dim)
    view = view.narrow(static_cast<int64_t>(dim), box.dims[dim].begin, box.dims[dim].size());
  return view;
}

}  // namespace

WholeMatrices::WholeMatrices(const shard::Unit& unit, const std::vector<bool>& wanted, int64_t first_turn)
    : unit_(&unit) {
  const auto descriptions =
      unit.tensor_group().all_gather_text(description(wanted, first_turn), unit.name() + ", boxes");
  for (size_t rank = 0; rank < descriptions.size(); ++rank)
    add(static_cast<int64_t>(rank), descriptions[rank]);
  check_coverage();
}

/// What other ranks of the tensor group have to know of this one's unit.
std::string WholeMatrices::description(const std::vector<bool>& wanted, int64_t first_turn) const {
  nlohmann::json matrices = nlohmann::json::array();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const shard::Shard& shard = unit_->shards()[i];
    nlohmann::json boxes = nlohmann::json::array();
    for (const Region& region : shard.regions) {
      nlohmann::json box = nlohmann::json::array();
      for (const DimRange& range : region.box.dims) box.push_back({range.begin, range.end});
      boxes.push_back(box);
    }
    matrices.push_back(
        {{"name", shard.name}, {"shape", shard.shape}, {"offset", unit_->offset(i)}, {"boxes", boxes}});
  }
  return nlohmann::json{{"first_turn", first_turn},
                        {"shard", unit_->shard_group().rank()},
                        {"elements", unit_->padded_numel()},
                        {"matrices", matrices}}
      .dump();
}

/// The boxes of another rank's unit, and this one's.
void WholeMatrices::add(int64_t rank, const std::string& description) {
  const auto unit = nlohmann::json::parse(description);
  TESSERA_CHECK_EQ(unit.at("shard").get<int64_t>(), unit_->shard_group().rank());
  longest_ = std::max(longest_, unit.at("elements").get<int64_t>());
  for (const auto& one : unit.at("matrices")) {
    if (matrices_.empty()) first_turn_ = unit.at("first_turn").get<int64_t>();
    const auto name = one.at("name").get<std::string>();
    auto matrix = std::ranges::find(matrices_, name, &Matrix::name);
    if (matrix == matrices_.end())
      matrix = matrices_.insert(matrix, {name, one.at("shape").get<std::vector<int64_t>>(), {}});
    auto offset = one.at("offset").get<int64_t>();
    for (const auto& ranges : one.at("boxes")) {
      HeldBox held{rank, offset, {}};
      for (const auto& range : ranges)
        held.box.dims.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
      offset += held.box.numel();
      if (held.box.numel() > 0) matrix->boxes.push_back(held);
    }
  }
}

void WholeMatrices::check_coverage() const {
  // Ranks that are pretended repeat the boxes of this one.
  if (unit_->tensor_group().transport_name() == "pretended") return;
  for (const Matrix& matrix : matrices_) {
    std::vector<Region> regions;
    for (const HeldBox& held : matrix.boxes) regions.push_back(Region::of(held.box));
    const auto fault = partition_fault(regions, matrix.shape);
    TESSERA_CHECK(!fault, matrix.name, " is not whole over the units ", unit_->name(), ": ", *fault);
  }
}

/// The flat tensors of the tensor group's units, one after another, each with `longest_` elements.
at::Tensor WholeMatrices::gathered() const {
  at::Tensor flat = unit_->gradient();
  if (is_split()) {
    flat = at::empty({unit_->padded_numel()}, flat.options());
    unit_->shard_group().all_gather(flat, unit_->gradient(), unit_->name() + ", momentum").wait();
  }
  mesh::Group& group = unit_->tensor_group();
  if (group.size() == 1) return flat;
  if (flat.numel() < longest_) flat = at::constant_pad_nd(flat, {0, longest_ - flat.numel()});
  at::Tensor units = at::empty({longest_ * group.size()}, flat.options());
  group.all_gather(units, flat, unit_->name() + ", momentum").wait();
  return units;
}

/// unit.gradient() <- this rank's shard of the sum of `results`, of the layout of gathered(), over the ranks:
/// in those of other ranks, which had other turns, there are zeros.
void WholeMatrices::bring_back(at::Tensor results) const {
  mesh::Group& group = unit_->tensor_group();
  if (group.size() > 1) {
    at::Tensor mine = at::empty({longest_}, results.options());
    group.reduce_scatter(mine, results, results.scalar_type(), unit_->name() + ", directions").wait();
    results = mine.narrow(0, 0, unit_->padded_numel());
  }
  if (is_split()) {
    unit_->shard_group()
        .reduce_scatter(unit_->gradient(), results, results.scalar_type(), unit_->name() + ", directions")
        .wait();
  } else if (group.size() > 1) {
    unit_->gradient().copy_(results);
  }
}

/// A view of gathered().
at::Tensor WholeMatrices::values_of(const at::Tensor& units, const HeldBox& held) const {
  return units.narrow(0, held.rank * longest_ + held.offset, held.box.numel()).view(held.box.shape());
}

/// A view where the matrix is whole in one unit.
at::Tensor WholeMatrices::assembled(const at::Tensor& units, const Matrix& matrix) const {
  if (matrix.boxes.size() == 1) return values_of(units, matrix.boxes[0]);
  at::Tensor whole = at::zeros(matrix.shape, units.options());
  for (const HeldBox& held : matrix.boxes) boxed(whole, held.box).copy_(values_of(units, held));
  return whole;
}

void WholeMatrices::put(at::Tensor units, const Matrix& matrix, const at::Tensor& values) const {
  const at::Tensor whole = values.view(matrix.shape);
  for (const HeldBox& held : matrix.boxes) values_of(units, held).copy_(boxed(whole, held.box));
}

void WholeMatrices::replace(const std::function<at::Tensor(const at::Tensor&)>& function) const {
  if (matrices_.empty()) return;
  mesh::Group &shards = unit_->shard_group(), &boxes = unit_->tensor_group();
  const at::Tensor units = gathered();
  const bool shared = is_split() || boxes.size() > 1;
  const at::Tensor results = shared ? at::zeros_like(units) : units;
  const int64_t ranks = shards.size() * boxes.size(), rank = shards.rank() * boxes.size() + boxes.rank();
  int64_t turn = first_turn_;
  for (const Matrix& matrix : matrices_) {
    if (turn++ % ranks != rank) continue;
    put(results, matrix, function(assembled(units, matrix).view({matrix.shape[0], -1})));
  }
  if (shared) bring_back(results);
}

}  // namespace tessera::optim
