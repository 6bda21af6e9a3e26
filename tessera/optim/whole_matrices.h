// SPDX-License-Identifier: Apache-2.0
// Some matrices of one unit, whole: gathered from all ranks that hold boxes of them, changed, and brought
// back. The ranks of the unit's shard group hold intervals of its flat tensor; the units of its tensor group
// hold other boxes of the same matrices.
//
// What a rank sends in replace(), in float32: P elements have all matrices and what else is in the units of
// the tensor group, of t ranks; the largest of these units has U elements, padding included (U = P / t where
// the cut is even), this rank's unit V, over z shards. The gathers send (z - 1) V / z and (t - 1) U elements,
// and the sums that bring the results back as many again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/region.h"
#include "tessera/shard/unit.h"

namespace tessera::optim {

class WholeMatrices {
 public:
  /// `wanted`: by shard of the unit. `first_turn`: the first matrix is the turn of this rank, modulo the
  /// ranks that share the unit; the same on all of them. Learns which boxes the units of the tensor group
  /// hold. Collective over the tensor group. Errors: InternalError where their boxes of a matrix do not cover
  /// it.
  WholeMatrices(const shard::Unit& unit, const std::vector<bool>& wanted, int64_t first_turn);

  /// unit.gradient() <- function(its matrix) for each wanted matrix; other elements become undefined.
  /// `function`: from [rows, columns] to the same shape; called for one matrix after another on the rank
  /// whose turn it is. Collective over the shard group and the tensor group.
  void replace(const std::function<at::Tensor(const at::Tensor&)>& function) const;

 private:
  struct HeldBox {
    int64_t rank = 0, offset = 0;  // of the tensor group; of the first element in that rank's flat tensor
    Box box;
  };
  struct Matrix {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<HeldBox> boxes;
  };

  std::string description(const std::vector<bool>& wanted, int64_t first_turn) const;
  void add(int64_t rank, const std::string& description);
  void check_coverage() const;
  at::Tensor gathered() const;
  void bring_back(at::Tensor results) const;
  at::Tensor values_of(const at::Tensor& units, const HeldBox& held) const;
  at::Tensor assembled(const at::Tensor& units, const Matrix& matrix) const;
  void put(at::Tensor units, const Matrix& matrix, const at::Tensor& values) const;
  bool is_split() const { return unit_->shard_numel() < unit_->padded_numel(); }

  const shard::Unit* unit_;
  std::vector<Matrix> matrices_;  // in the same order on all ranks of the tensor group
  int64_t first_turn_ = 0;
  int64_t longest_ = 0;  // padded elements of the largest unit of the tensor group
};

}  // namespace tessera::optim
