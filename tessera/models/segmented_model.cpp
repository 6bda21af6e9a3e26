// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/segmented_model.h"

#include <ATen/ops/empty.h>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"
#include "tessera/models/inference.h"
#include "tessera/models/parameter_tree.h"
#include "tessera/models/resmlp.h"
#include "tessera/models/resnet.h"
#include "tessera/models/vit.h"

namespace tessera::models {
namespace {

// `everyone`: the ranks whose samples count; null: this process is alone.
std::unique_ptr<SegmentedModel> make(const arch::VitConfig& config, mesh::Group* /*everyone*/,
                                     const parallel::TensorGroups* groups) {
  return std::make_unique<VisionTransformer>(config, groups);
}

std::unique_ptr<SegmentedModel> make(const arch::ResNetConfig& config, mesh::Group* everyone,
                                     const parallel::TensorGroups* /*groups*/) {
  return std::make_unique<ResNet>(config, config.batch_norm_sync ? everyone : nullptr);
}

std::unique_ptr<SegmentedModel> make(const arch::ResMlpConfig& config, mesh::Group* /*everyone*/,
                                     const parallel::TensorGroups* groups) {
  return std::make_unique<ResMlp>(config, groups);
}

}  // namespace

SegmentedModel::SegmentedModel(std::string name, std::vector<arch::ParameterSpec> specs,
                               const parallel::TensorGroups* groups)
    : torch::nn::Module(std::move(name)), specs_(std::move(specs)), groups_(groups) {}

ParameterMap SegmentedModel::register_all(const ParameterMap& fixed) {
  const auto local_shape = [this](const arch::ParameterSpec& spec) {
    const parallel::TensorGroup* group = group_of(spec.unit);
    return group == nullptr ? spec.shape : arch::shape_of(spec, group->size(), group->rank());
  };
  return register_parameters(*this, specs_, local_shape, fixed);
}

void SegmentedModel::set_segments(std::vector<Segment> segments, const std::vector<arch::BufferSpec>& buffers,
                                  const std::map<std::string, at::Tensor>& registered) {
  segments_ = std::move(segments);
  for (Segment& segment : segments_) {
    segment.forward = [name = segment.name, inner = std::move(segment.forward)](
                          const at::Tensor& x, const ForwardContext& context) {
      const at::Tensor output = inner(x, context);
      if (context.observe) context.observe(name, output);
      return output;
    };
  }
  std::map<std::string, Segment*> by_unit;
  for (Segment& segment : segments_) by_unit[segment.name] = &segment;
  for (const auto& spec : specs_) {
    if (spec.buffer) continue;
    Segment& segment = *by_unit.at(spec.unit);
    const bool whole = group_of(spec.unit) != nullptr && !spec.is_cut();
    (whole ? segment.rows : segment.parameters).emplace_back(spec.name, registered.at(spec.name));
  }
  for (const auto& spec : buffers) {
    by_unit.at(spec.unit)->buffers.emplace_back(spec.name, registered.at(spec.name));
  }
}

at::Tensor SegmentedModel::forward(const at::Tensor& images, const ForwardContext& context) {
  at::Tensor x = images;
  for (const auto& segment : segments_) {
    x = segment.forward(x, context);
  }
  return x;
}

void SegmentedModel::place(at::Device device) {
  // Under the handles that segments hold. As set_data() does, which refuses devices that have no memory.
  const auto put = [](const at::Tensor& handle, const at::Tensor& there) {
    handle.unsafeGetTensorImpl()->shallow_copy_from(there.getIntrusivePtr());
  };
  for (const Segment& segment : segments_) {
    for (const NamedTensors* parameters : {&segment.parameters, &segment.rows}) {
      for (const auto& [name, parameter] : *parameters)
        put(parameter, hollow_tensor(parameter.sizes(), parameter.scalar_type(), device));
    }
    for (const auto& [name, buffer] : segment.buffers) put(buffer, buffer.to(device));
  }
}

std::unique_ptr<SegmentedModel> make_model(const arch::ModelConfig& config, mesh::Group& everyone,
                                           const parallel::TensorGroups* groups) {
  return std::visit([&](const auto& one) { return make(one, &everyone, groups); }, config.of);
}

std::unique_ptr<SegmentedModel> make_model(const arch::ModelConfig& config) {
  return std::visit([](const auto& one) { return make(one, nullptr, nullptr); }, config.of);
}

at::Tensor hollow_tensor(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

}  // namespace tessera::models
