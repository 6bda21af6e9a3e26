// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/parameter_tree.h"

#include <ATen/ops/full.h>

#include "tessera/base/error.h"
#include "tessera/models/segmented_model.h"

namespace tessera::models {
namespace {

// The submodule that owns `path` ("blocks.3.attn.qkv.weight" -> blocks.3.attn.qkv), made where it is missing.
torch::nn::Module& owner_of(torch::nn::Module& root, const std::string& path, std::string& leaf) {
  torch::nn::Module* module = &root;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    const std::string child = path.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* found = children.find(child);
    module = found != nullptr
                 ? found->get()
                 : module->register_module(child, std::make_shared<torch::nn::Module>(child)).get();
    begin = dot + 1;
  }
  leaf = path.substr(begin);
  return *module;
}

}  // namespace

ParameterMap register_parameters(torch::nn::Module& root, const std::vector<arch::ParameterSpec>& specs,
                                 const ShapeOf& shape_of, const ParameterMap& fixed) {
  ParameterMap map;
  for (const auto& spec : specs) {
    std::string leaf;
    torch::nn::Module& owner = owner_of(root, spec.name, leaf);
    if (spec.buffer) {
      map[spec.name] = owner.register_buffer(leaf, fixed.at(spec.name).view(spec.shape));
    } else {
      map[spec.name] = owner.register_parameter(leaf, hollow_tensor(shape_of(spec), at::kFloat));
    }
  }
  return map;
}

void register_buffers(torch::nn::Module& root, const std::vector<arch::BufferSpec>& specs,
                      ParameterMap& map) {
  for (const auto& spec : specs) {
    std::string leaf;
    torch::nn::Module& owner = owner_of(root, spec.name, leaf);
    const auto dtype = spec.whole_numbers ? at::kLong : at::kFloat;
    map[spec.name] = owner.register_buffer(leaf, at::full(spec.shape, spec.init_value, dtype));
  }
}

at::Tensor ParameterScope::get(const std::string& name) const {
  const auto found = all_->find(prefix_ + name);
  TESSERA_CHECK(found != all_->end(), "no parameter ", prefix_, name);
  return found->second;
}

}  // namespace tessera::models
