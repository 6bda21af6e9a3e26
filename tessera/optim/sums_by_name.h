// SPDX-License-Identifier: Apache-2.0
// Sums over all ranks of some values of every tensor. Ranks need not hold the same tensors, nor in one order:
// values are matched by the tensors' names.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "tessera/mesh/mesh.h"

namespace tessera::optim {

/// A tensor of which this rank holds something, and how many values of it are summed: as many on every rank.
struct SummedTensor {
  std::string name;
  int64_t values = 0;
};

class SumsByName {
 public:
  SumsByName() = default;
  /// Learns the tensors of all ranks. `mine` may name a tensor more than once. `what` names the sums in
  /// errors. Collective over the mesh.
  SumsByName(std::span<const SummedTensor> mine, mesh::Mesh& mesh, std::string what);

  /// Zeros, one for each value of every rank's tensors: [values] float64 on the host.
  at::Tensor zeros() const;
  /// Where the values of a tensor of this rank begin.
  int64_t begin(const std::string& name) const { return entries_.at(name).begin; }
  /// Does no lower rank hold something of this tensor?
  bool is_lowest_holder(const std::string& name) const { return entries_.at(name).lowest_rank == rank_; }
  /// values <- their sum over all ranks, the same bits on every rank. Collective over the mesh.
  void sum(at::Tensor& values, mesh::Mesh& mesh) const;

 private:
  struct TensorEntry {
    int64_t begin = 0, lowest_rank = 0;
  };
  std::string what_;
  int64_t rank_ = 0, values_ = 0;
  std::unordered_map<std::string, TensorEntry> entries_;  // by name, of all ranks' tensors
};

}  // namespace tessera::optim
