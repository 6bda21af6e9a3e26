// SPDX-License-Identifier: Apache-2.0
// What every network of this room is: pieces that run one after another, so that others can gather, recompute
// or place them. Written as for one device.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/base/region.h"
#include "tessera/mesh/group.h"
#include "tessera/models/segment.h"
#include "tessera/parallel/tensor_group.h"

namespace tessera::models {

/// A tensor with sizes and no memory; its storage is filled later (by a shard unit or `allocate`).
at::Tensor hollow_tensor(at::IntArrayRef shape, at::ScalarType dtype, at::Device device = at::kCPU);

/// [batch, channels, image, image] -> [batch, classes]. Parameters start hollow, buffers with their initial
/// values; named_parameters() and named_buffers() give the published model's names.
class SegmentedModel : public torch::nn::Module {
 public:
  /// In forward order.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Of all parameters, with the shapes of whole tensors.
  const std::vector<arch::ParameterSpec>& specs() const { return specs_; }
  /// Runs all segments. Images in any float dtype; computed in the parameters' dtype; logits float32.
  at::Tensor forward(const at::Tensor& images, const ForwardContext& context);
  /// Moves buffers to `device`; hollow parameters are of it from now on. Requires: parameters are hollow.
  void place(at::Device device);

 protected:
  /// `groups`: which layers are cut, and over whom; null: none. Outlives the model.
  SegmentedModel(std::string name, std::vector<arch::ParameterSpec> specs,
                 const parallel::TensorGroups* groups = nullptr);
  /// Registers every parameter, hollow, with the shape of what this rank holds, and where spec.buffer the
  /// tensor of that name in `fixed`. By name.
  std::map<std::string, at::Tensor> register_all(const std::map<std::string, at::Tensor>& fixed = {});
  /// Of the layers of a unit; null where they are not cut.
  const parallel::TensorGroup* group_of(const std::string& unit) const {
    return groups_ == nullptr ? nullptr : groups_->of(unit);
  }
  /// Gives the segments what belongs to them, by the unit of each spec. `registered`: every tensor by name.
  void set_segments(std::vector<Segment> segments, const std::vector<arch::BufferSpec>& buffers,
                    const std::map<std::string, at::Tensor>& registered);

 private:
  std::vector<arch::ParameterSpec> specs_;
  const parallel::TensorGroups* groups_;
  std::vector<Segment> segments_;
};

/// The network of a config. `everyone`: the ranks whose samples count where a model takes statistics over all
/// of them; `groups`: those over which layers are cut, null for none. Both outlive the model.
std::unique_ptr<SegmentedModel> make_model(const arch::ModelConfig& config, mesh::Group& everyone,
                                           const parallel::TensorGroups* groups = nullptr);

/// Gives every parameter memory of its own and its initial value for `seed` (for one device, without
/// sharding).
void allocate(SegmentedModel& model, uint64_t seed, at::ScalarType dtype = at::kFloat);

/// A region of the parameter's initial value. Each value is a function of the seed, the name and the
/// element's index in the whole tensor: any split gives the same bits. `out`: 1-D float32, contiguous,
/// region.numel() elements. Requires: a trained parameter.
void initialise(const arch::ParameterSpec& spec, uint64_t seed, const Region& region, at::Tensor out);

}  // namespace tessera::models
