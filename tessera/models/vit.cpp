#include "tessera/models/vit.h"

#include "tessera/models/ends.h"

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

std::function<at::Tensor(const at::Tensor&, const ForwardContext&)> block_forward(
    const ParameterMap& map, const arch::VitConfig& config, int64_t block) {
  const double rate = drop_path_rate(config, block);
  auto parts = std::make_shared<Block>(
      Block{AttentionBranch(map, config, block, rate), MlpBranch(map, config, block, rate)});
  return [parts](const at::Tensor& x, const ForwardContext& context) {
    return parts->mlp.forward(parts->attention.forward(x, context), context);
  };
}

}  // namespace

VisionTransformer::VisionTransformer(const arch::VitConfig& config)
    : torch::nn::Module("VisionTransformer"), config_(config) {
  arch::check(config);
  const auto specs = arch::parameters(config);
  const ParameterMap map = register_parameters(*this, config, specs);
  auto stem = std::make_shared<Stem>(map, config);
  segments_.push_back({"stem", {}, [stem](const at::Tensor& images, const ForwardContext& context) {
                         return stem->forward(images, context);
                       }});
  for (int64_t i = 0; i < config.depth; ++i) {
    segments_.push_back({"blocks." + std::to_string(i), {}, block_forward(map, config, i)});
  }
  auto head = std::make_shared<HeadEnd>(map, config);
  segments_.push_back({"head", {}, [head](const at::Tensor& x, const ForwardContext& context) {
                         return head->forward(x, context);
                       }});
  auto segment = segments_.begin();
  for (const auto& spec : specs) {
    while (segment->name != spec.unit) {
      ++segment;
    }
    if (!spec.buffer) {
      segment->parameters.emplace_back(spec.name, map.at(spec.name));
    }
  }
}

VisionTransformer::~VisionTransformer() = default;

at::Tensor VisionTransformer::forward(const at::Tensor& images, const ForwardContext& context) {
  at::Tensor x = images;
  for (const auto& segment : segments_) {
    x = segment.forward(x, context);
  }
  return x;
}

}  // namespace tessera::models
