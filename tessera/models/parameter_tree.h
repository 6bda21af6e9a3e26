// SPDX-License-Identifier: Apache-2.0
// From the parameter specs of a model to handles: the module tree that owns them, and lookup by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/arch/specs.h"

namespace torch::nn {
class Module;
}

namespace tessera::models {

using ParameterMap = std::map<std::string, at::Tensor>;

/// The shape of what a rank holds of a parameter.
using ShapeOf = std::function<std::vector<int64_t>(const arch::ParameterSpec&)>;

/// Registers a hollow float32 parameter for every spec, below submodules named by the dots of its name, and
/// where spec.buffer the tensor of that name in `fixed`. The handles stay valid when others replace the data
/// under them.
ParameterMap register_parameters(torch::nn::Module& root, const std::vector<arch::ParameterSpec>& specs,
                                 const ShapeOf& shape_of, const ParameterMap& fixed = {});

/// Registers a buffer with its initial value for every spec and adds it to the map.
void register_buffers(torch::nn::Module& root, const std::vector<arch::BufferSpec>& specs, ParameterMap& map);

/// The parameters whose names start with a prefix, by the rest of their names.
class ParameterScope {
 public:
  ParameterScope(const ParameterMap& all, std::string prefix) : all_(&all), prefix_(std::move(prefix)) {}
  /// The scope one level down: scope.child("attn") holds "<prefix>attn.".
  ParameterScope child(const std::string& name) const { return {*all_, prefix_ + name + "."}; }
  bool has(const std::string& name) const { return all_->contains(prefix_ + name); }
  /// Requires: has(name).
  at::Tensor get(const std::string& name) const;
  /// Undefined tensor where there is none.
  at::Tensor find(const std::string& name) const { return has(name) ? get(name) : at::Tensor(); }

 private:
  const ParameterMap* all_;
  std::string prefix_;
};

}  // namespace tessera::models
