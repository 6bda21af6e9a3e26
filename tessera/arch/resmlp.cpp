// SPDX-License-Identifier: Apache-2.0
#include "tessera/arch/resmlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/arch/checks.h"
#include "tessera/arch/cut.h"
#include "tessera/base/error.h"

namespace tessera::arch {
namespace {

constexpr double kHeadStd = 0.02, kMlpBiasStd = 1e-6;

/// Collects the specs of one unit after another.
class ResMlpListing {
 public:
  explicit ResMlpListing(const ResMlpConfig& c) : config_(c) {
    unit_ = "stem";
    const auto pixels = static_cast<double>(c.channels * c.patch_size * c.patch_size);
    add("stem.proj.weight", {c.width, c.channels, c.patch_size, c.patch_size}, Init::kNormal,
        1 / std::sqrt(pixels), true);
    add("stem.proj.bias", {c.width}, Init::kZero);
    for (int64_t i = 0; i < c.depth; ++i) list_block(concat("blocks.", i));
    unit_ = "head";
    affine("norm");
    add("head.weight", {c.classes, c.width}, Init::kTruncatedNormal, kHeadStd, true);
    add("head.bias", {c.classes}, Init::kZero);
  }

  std::vector<ParameterSpec> specs;

 private:
  // (More than 5 parameters: a row of the model's table.)
  void add(std::string name, std::vector<int64_t> shape, Init init, double value = 0, bool decay = false,
           Cut cut = {}) {
    specs.push_back({std::move(name), std::move(shape), init, value, unit_, decay, false, cut});
  }
  void affine(const std::string& name) {
    add(name + ".alpha", {1, 1, config_.width}, Init::kOne);
    add(name + ".beta", {1, 1, config_.width}, Init::kZero);
  }
  void matrix(const std::string& name, int64_t in, int64_t out, Cut cut = {}) {
    const double bound = std::sqrt(6.0 / static_cast<double>(in + out));  // Xavier's
    add(name + ".weight", {out, in}, Init::kUniform, bound, true, cut);
  }
  void list_block(const std::string& block) {
    unit_ = block;
    const int64_t width = config_.width, tokens = config_.tokens(), hidden = config_.mlp_width;
    add(block + ".ls1", {width}, Init::kConstant, config_.layer_scale);
    add(block + ".ls2", {width}, Init::kConstant, config_.layer_scale);
    affine(block + ".norm1");
    matrix(block + ".linear_tokens", tokens, tokens);
    add(block + ".linear_tokens.bias", {tokens}, Init::kZero);
    affine(block + ".norm2");
    const Cut rows{.dim = 0, .items = hidden_items(hidden)}, columns{.dim = 1, .items = rows.items};
    matrix(block + ".mlp_channels.fc1", width, hidden, rows);
    add(block + ".mlp_channels.fc1.bias", {hidden}, Init::kNormal, kMlpBiasStd, false, rows);
    matrix(block + ".mlp_channels.fc2", hidden, width, columns);
    add(block + ".mlp_channels.fc2.bias", {width}, Init::kNormal, kMlpBiasStd);
  }

  const ResMlpConfig& config_;
  std::string unit_;
};

NamedResMlp named(const char* name, int64_t patch, int64_t width, int64_t depth, double layer_scale) {
  ResMlpConfig config;
  config.patch_size = patch;
  config.width = width;
  config.depth = depth;
  config.mlp_width = 4 * width;
  config.layer_scale = layer_scale;
  return {name, config};
}

}  // namespace

void check(const ResMlpConfig& c) {
  in_range("image_size", c.image_size, 1, 1 << 16);
  in_range("patch_size", c.patch_size, 1, 1 << 16);
  in_range("channels", c.channels, 1, 1024);
  in_range("width", c.width, 1, 1 << 20);
  in_range("depth", c.depth, 1, 4096);
  in_range("mlp_width", c.mlp_width, 1, 1 << 22);
  in_range("classes", c.classes, 1, 1 << 27);
  check_patches(c.image_size, c.patch_size);
  in_range("the number of patches of an image", c.tokens(), 1,
           1 << 16);  // squared: the size of a block's token layer
  is_layer_scale(c.layer_scale);
  is_rate("drop_path", c.drop_path);
}

std::vector<ParameterSpec> parameters(const ResMlpConfig& config) { return ResMlpListing(config).specs; }

std::vector<BufferSpec> buffers(const ResMlpConfig& /*config*/) { return {}; }

std::vector<std::string> unit_names(const ResMlpConfig& config) {
  std::vector<std::string> names = {"stem"};
  for (int64_t i = 0; i < config.depth; ++i) names.push_back(concat("blocks.", i));
  names.push_back("head");
  return names;
}

std::vector<double> unit_flops(const ResMlpConfig& config) {
  const auto n = static_cast<double>(config.tokens()), d = static_cast<double>(config.width);
  const auto m = static_cast<double>(config.mlp_width);
  const auto pixels = static_cast<double>(config.channels * config.patch_size * config.patch_size);
  std::vector<double> flops(static_cast<size_t>(config.depth) + 2, 2 * (n * n * d + 2 * n * d * m));
  flops.front() = 2 * n * pixels * d;
  flops.back() = 2 * d * static_cast<double>(config.classes);
  return flops;
}

double forward_flops(const ResMlpConfig& config) {
  const std::vector<double> flops = unit_flops(config);
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

Exchanges exchanges(const ResMlpConfig& config, size_t index) {
  if (index == 0 || index > static_cast<size_t>(config.depth)) return {};
  // The channel MLP alone is cut: its input is gathered, its output summed, which LayerScale's gradient
  // needs.
  const double values = static_cast<double>(config.tokens() * config.width);
  return {.forward = 2 * values, .inputs = values, .again = 2 * values, .again_with_sums = values};
}

Activations activations(const ResMlpConfig& config, double c, bool /*keeps_activations*/,
                        const std::vector<TensorShare>& shares) {
  const auto d = static_cast<double>(config.width);
  const double pixels = static_cast<double>(config.channels * config.image_size) * config.image_size;
  const double tokens = c * static_cast<double>(config.tokens());  // bytes a channel
  const double logits = 2 * kFloatBytes * static_cast<double>(config.classes), head = logits + c * 2 * d;
  Activations result;
  // The stem unfolds the image into patches, which its product keeps.
  result.units.push_back({c * pixels, c * pixels, 0});
  // A block: its input; what the token layer read and made; the sum; what the MLP read, before and after
  // GELU, and made.
  const double input = tokens * d;
  result.working = logits;  // their gradients, where there are so many
  for (int64_t i = 1; i <= config.depth; ++i) {
    const TensorShare share = shares.empty() ? TensorShare() : shares.at(static_cast<size_t>(i));
    const auto degree = static_cast<double>(share.degree);
    // What the MLP read: of the rank's own samples, or of all that were gathered.
    const double read = share.keeps_gathered ? degree * d : d;
    const double hidden =
        degree * static_cast<double>(hidden_of(config.mlp_width, share.degree, share.index));
    const double inner = tokens * (4 * d + read + 2 * hidden);
    result.units.push_back({input, input + inner, inner, share.degree > 1 ? tokens * d : 0});
    result.working = std::max(result.working, tokens * (d + 2 * hidden + exchanged_width(share, d)));
  }
  result.working_on_gpu = result.working;
  result.units.push_back({input, input + head, head});
  return result;
}

std::string describe(const ResMlpConfig& config) {
  return concat("ResMLP, width ", config.width, ", depth ", config.depth, ", patch ", config.patch_size, ", ",
                config.tokens(), " tokens of a ", config.image_size, " px image");
}

const std::vector<NamedResMlp>& resmlp_ladder() {
  static const std::vector<NamedResMlp> ladder = {
      named("resmlp_12_224", 16, 384, 12, 1e-4),
      named("resmlp_24_224", 16, 384, 24, 1e-5),
      named("resmlp_36_224", 16, 384, 36, 1e-6),
      named("resmlp_big_24_224", 8, 768, 24, 1e-6),
  };
  return ladder;
}

ResMlpConfig resmlp_config(std::string_view name) {
  return named_config("arch.resmlp_config", "the name of a ResMLP, like resmlp_24_224", name,
                      resmlp_ladder());
}

}  // namespace tessera::arch
