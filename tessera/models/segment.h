// SPDX-License-Identifier: Apache-2.0
// A network's segments, for those that run them without knowing the network: segmented_model.h without
// torch::nn, whose templates cost every file that includes them some seconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/parallel/group_samples.h"
#include "tessera/parallel/kept_sums.h"

namespace tessera::models {

class SegmentedModel;

/// What the random numbers of one forward pass depend on. A dropout mask is a function of
/// (key, sample, layer's name, element), so it is the same on any rank and in recomputation.
struct ForwardContext {
  bool training = false;
  uint64_t key = 0;               // of (seed, step)
  std::vector<uint64_t> samples;  // [batch] sample numbers
  /// Of the same micro-batch, by parallel::TensorGroup::index(): who holds which samples. Cut layers need it.
  std::vector<parallel::GroupSamples> tensor_groups = {};
  /// Of a segment that runs again in backward, in both runs. Null: its sums are made as they come.
  std::shared_ptr<parallel::KeptSums> sums = nullptr;
  /// If there is one, it is told of what comes out of every segment, by its name, and within a head of
  /// "features", [batch, width], what the classifier reads, and of a ViT's "tokens", [batch, tokens, width],
  /// what they are pooled from (timm's forward_head(pre_logits=True) and forward_features; where two
  /// classifiers read two tokens, "features" is their mean). Observing changes no result, and
  /// computes nothing in addition: a tensor that the pass does not need is not shown.
  std::function<void(const std::string& name, const at::Tensor& value)> observe = {};
  /// A ViT's last block makes all of its tokens, though the head reads fewer (Note [Tokens that are read]).
  bool every_token = false;
  bool fp8 = false;  // the linear layers of blocks multiply in fp8 (ops/fp8_linear.h)
  /// Linear layers of a ViT's blocks keep their inputs for backward, instead of making again what a norm or a
  /// GELU made (Note [Inputs made again] in ops/kept_input.h): less work, more memory, the same bits.
  bool keeps_activations = false;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A part of the network that is computed as one. Gathering, recompute and pipeline stages go by segments.
struct Segment {
  std::string name;         // "stem", "blocks.3", "head"
  NamedTensors parameters;  // full names; tensors may be hollow. Of cut layers this rank's boxes (arch/cut.h)
  std::function<at::Tensor(const at::Tensor& x, const ForwardContext&)> forward;
  NamedTensors buffers = {};  // what its forward changes while training
  NamedTensors rows = {};     // where layers are cut: the parameters that are not, whole
};

}  // namespace tessera::models
