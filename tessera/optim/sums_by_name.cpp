// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/sums_by_name.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tessera::optim {

SumsByName::SumsByName(std::span<const SummedTensor> mine, mesh::Mesh& mesh, std::string what)
    : what_(std::move(what)), rank_(mesh.rank()) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const SummedTensor& one : mine) tensors.push_back({one.name, one.values});
  const std::vector<std::string> texts = mesh.world().all_gather_text(tensors.dump(), what_);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (const auto& one : nlohmann::json::parse(texts[rank])) {
      const TensorEntry entry{values_, static_cast<int64_t>(rank)};
      const bool added = entries_.emplace(one.at(0).get<std::string>(), entry).second;
      if (added) values_ += one.at(1).get<int64_t>();
    }
  }
}

at::Tensor SumsByName::zeros() const { return at::zeros({values_}, at::kDouble); }

void SumsByName::sum(at::Tensor& values, mesh::Mesh& mesh) const { mesh.world().all_reduce(values, what_); }

}  // namespace tessera::optim
