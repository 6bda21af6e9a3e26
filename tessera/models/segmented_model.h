// What every network of this room is: pieces that run one after another, so that others can gather, recompute
// or place them. Written as for one device.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/mesh/group.h"

namespace tessera::models {

/// What the random numbers of one forward pass depend on. A dropout mask is a function of
/// (key, sample, layer's name, element), so it is the same on any rank and in recomputation.
struct ForwardContext {
  bool training = false;
  uint64_t key = 0;               // of (seed, step)
  std::vector<uint64_t> samples;  // [batch] sample numbers
  /// If there is one, it is told of what comes out of every segment, by its name, and within a head of
  /// "features", [batch, width], what the classifier reads, and of a ViT's "tokens", [batch, tokens, width],
  /// what they are pooled from (timm's forward_head(pre_logits=True) and forward_features).
  std::function<void(const std::string& name, const at::Tensor& value)> observe = {};
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A piece of the model: the unit of gathering, recompute and (later) pipeline stages.
struct Segment {
  std::string name;         // "stem", "blocks.3", "head"
  NamedTensors parameters;  // full names; tensors may be hollow
  std::function<at::Tensor(const at::Tensor& x, const ForwardContext&)> forward;
  NamedTensors buffers = {};  // what its forward changes while training
};

/// A tensor with sizes and no memory; its storage is filled later (by a shard unit or `allocate`).
at::Tensor hollow_tensor(at::IntArrayRef shape, at::ScalarType dtype, at::Device device = at::kCPU);

/// [batch, channels, image, image] -> [batch, classes]. Parameters start hollow, buffers with their initial
/// values; named_parameters() and named_buffers() give the published model's names.
class SegmentedModel : public torch::nn::Module {
 public:
  /// In forward order.
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<arch::ParameterSpec>& specs() const { return specs_; }
  /// Runs all segments. Images in any float dtype; computed in the parameters' dtype; logits float32.
  at::Tensor forward(const at::Tensor& images, const ForwardContext& context);
  /// Moves buffers to `device`; hollow parameters are of it from now on. Requires: parameters are hollow.
  void place(at::Device device);

 protected:
  SegmentedModel(std::string name, std::vector<arch::ParameterSpec> specs);
  /// Gives the segments what belongs to them, by the unit of each spec. `registered`: every tensor by name.
  void set_segments(std::vector<Segment> segments, const std::vector<arch::BufferSpec>& buffers,
                    const std::map<std::string, at::Tensor>& registered);

 private:
  std::vector<arch::ParameterSpec> specs_;
  std::vector<Segment> segments_;
};

/// The network of a config. `everyone`: the ranks whose samples count where a model takes statistics over all
/// of them; it outlives the model.
std::unique_ptr<SegmentedModel> make_model(const arch::ModelConfig& config, mesh::Group& everyone);

/// Gives every parameter memory of its own and its initial value for `seed` (for one device, without
/// sharding).
void allocate(SegmentedModel& model, uint64_t seed, at::ScalarType dtype = at::kFloat);

/// Elements [begin, begin + out.numel()) of the parameter's initial value, flattened: the same for any split.
/// `out`: 1-D float32, contiguous. Requires: a trained parameter.
void initialise(const arch::ParameterSpec& spec, uint64_t seed, int64_t begin, at::Tensor out);

}  // namespace tessera::models
