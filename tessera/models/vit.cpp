// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/vit.h"

#include "tessera/models/position_embedding.h"
#include "tessera/models/stem_and_head.h"

namespace tessera::models {
namespace {

struct Block {
  AttentionBranch attention;
  MlpBranch mlp;
};

// Drop-path grows linearly over the blocks, from 0.
double drop_path_rate(const arch::VitConfig& config, int64_t block) {
  return config.depth > 1
             ? config.drop_path * static_cast<double>(block) / static_cast<double>(config.depth - 1)
             : 0.0;
}

std::vector<arch::ParameterSpec> checked_parameters(const arch::VitConfig& config) {
  arch::check(config);
  return arch::parameters(config);
}

std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> block_forward(
    const ParameterMap& map, const arch::VitConfig& config, int64_t block,
    const parallel::TensorGroup* group) {
  const double rate = drop_path_rate(config, block);
  auto parts = std::make_shared<Block>(
      Block{AttentionBranch(map, config, block, rate, group), MlpBranch(map, config, block, rate, group)});
  return [parts](const at::Tensor& x, const ForwardContext& context) {
    const auto [residual, branch] = parts->attention.forward(x, context);
    return parts->mlp.forward(residual, branch, context);
  };
}

}  // namespace

VisionTransformer::VisionTransformer(const arch::VitConfig& config, const parallel::TensorGroups* groups)
    : SegmentedModel("VisionTransformer", checked_parameters(config), groups), config_(config) {
  ParameterMap fixed;
  if (config.position_embedding == arch::PositionEmbedding::kSinCos2d) {
    fixed["pos_embed"] = sin_cos_position_embedding(config);
  }
  const ParameterMap map = register_all(fixed);
  std::vector<Segment> segments;
  auto stem = std::make_shared<Stem>(map, config);
  segments.push_back({"stem", {}, [stem](const at::Tensor& images, const ForwardContext& context) {
                        return stem->forward(images, context);
                      }});
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    segments.push_back({name, {}, block_forward(map, config, i, group_of(name))});
  }
  auto head = std::make_shared<HeadEnd>(map, config);
  segments.push_back({"head", {}, [head](const at::Tensor& x, const ForwardContext& context) {
                        return head->forward(x, context);
                      }});
  set_segments(std::move(segments), arch::buffers(config), map);
}

VisionTransformer::~VisionTransformer() = default;

}  // namespace tessera::models
