// The Vision Transformer for LibTorch, with timm's parameter names. Written as for one device: it knows
// nothing of ranks. It runs as segments, one after another, so that others can gather, recompute or place
// them.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/arch/vit.h"

namespace tessera::models {

/// What the random numbers of one forward pass depend on. A dropout mask is a function of
/// (key, sample, layer's name, element), so it is the same on any rank and in recomputation.
struct ForwardContext {
  bool training = false;
  uint64_t key = 0;               // of (seed, step)
  std::vector<uint64_t> samples;  // [batch] sample numbers
};

/// A piece of the model: the unit of gathering, recompute and (later) pipeline stages.
struct Segment {
  std::string name;                                            // "stem", "blocks.3", "head"
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // full names; tensors may be hollow
  std::function<at::Tensor(const at::Tensor& x, const ForwardContext&)> forward;
};

/// A tensor with sizes and no memory; its storage is filled later (by a shard unit or `allocate`).
at::Tensor hollow_tensor(at::IntArrayRef shape, at::ScalarType dtype);

/// [batch, channels, image, image] -> [batch, classes]. Parameters start hollow; named_parameters() gives
/// timm's names.
class VisionTransformer : public torch::nn::Module {
 public:
  explicit VisionTransformer(const arch::VitConfig& config);
  ~VisionTransformer() override;
  const arch::VitConfig& config() const { return config_; }
  /// In forward order.
  const std::vector<Segment>& segments() const { return segments_; }
  /// Runs all segments. Images in any float dtype; computed in the parameters' dtype; logits float32.
  at::Tensor forward(const at::Tensor& images, const ForwardContext& context);

 private:
  arch::VitConfig config_;
  std::vector<Segment> segments_;
};

/// Gives every parameter memory of its own and its initial value for `seed` (for one device, without
/// sharding).
void allocate(VisionTransformer& model, uint64_t seed, at::ScalarType dtype = at::kFloat);

/// Elements [begin, begin + out.numel()) of the parameter's initial value, flattened: the same for any split.
/// `out`: 1-D float32, contiguous.
void initialise(const arch::ParameterSpec& spec, const arch::VitConfig& config, uint64_t seed, int64_t begin,
                at::Tensor out);

}  // namespace tessera::models
