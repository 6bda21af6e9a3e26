// SPDX-License-Identifier: Apache-2.0
// Networks on their own: made without ranks, filled from any source of tensors.
#include "tessera/models/inference.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/arch/small_config.h"
#include "tests/error_text.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

/// What a model holds, as a checkpoint of it would.
class SourceOf final : public checkpoint::TensorSource {
 public:
  explicit SourceOf(const SegmentedModel& model) {
    add("adamw.step/of_no_interest", at::zeros({3}));
    for (const Segment& segment : model.segments()) {
      for (const auto& [name, parameter] : segment.parameters) add("param/" + name, parameter.detach());
      for (const auto& [name, buffer] : segment.buffers) add("buffer/" + name, buffer);
    }
  }
  void add(const std::string& name, const at::Tensor& values) {
    tensors_.push_back({name, values.scalar_type() == at::kLong ? "I64" : "F32", values.sizes().vec()});
    values_.push_back(values.contiguous());
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  std::vector<checkpoint::Manifest::Tensor>& tensors() { return tensors_; }
  const checkpoint::Progress& progress() const override { return progress_; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    const at::Tensor& values = values_.at(tensor);
    const auto* bytes = static_cast<const std::byte*>(values.const_data_ptr());
    std::memcpy(out.data(), bytes + static_cast<size_t>(begin) * values.element_size(), out.size());
  }

 private:
  std::vector<checkpoint::Manifest::Tensor> tensors_;
  std::vector<at::Tensor> values_;
  checkpoint::Progress progress_;
};

constexpr arch::SmallSizes kSizes = {.image_size = 16, .width = 24, .mlp_width = 48, .classes = 5};

arch::VitConfig two_heads() { return arch::small_vit(kSizes, 2); }

arch::ModelConfig config_of(const std::string& name) {
  arch::VitConfig vit = two_heads();
  if (name == "fixed_positions") vit.position_embedding = arch::PositionEmbedding::kSinCos2d;
  if (name == "resnet") {
    arch::ResNetConfig config;
    config.blocks = {1, 1};
    config.base_width = 8;
    config.image_size = 32;
    config.classes = 5;
    config.batch_norm_sync = true;  // alone, over this process's samples
    return config;
  }
  if (name == "resmlp") return arch::small<arch::ResMlpConfig>(kSizes);
  return vit;
}

class Alone : public ::testing::TestWithParam<const char*> {};

TEST_P(Alone, IsTheNetworkWhoseTensorsItIsGiven) {
  const at::NoGradGuard no_grad;
  const arch::ModelConfig config = config_of(GetParam());
  const auto original = make_model(config);
  formula::fill(*original);
  const at::Tensor images = formula::images("images", 4, config);
  const at::Tensor before = original->forward(images, {});
  ForwardContext training;
  training.training = true;
  training.samples = {0, 1, 2, 3};
  original->forward(images, training);  // statistics, where there are some, become those of the images
  const at::Tensor wanted = original->forward(images, {});
  EXPECT_EQ(!wanted.equal(before), !arch::buffers(config).empty());

  SourceOf source(*original);
  const auto loaded = load_model(config, source);
  EXPECT_TRUE(loaded->forward(images, {}).equal(wanted));
  original->forward(images, training);  // the loaded one has memory of its own
  EXPECT_TRUE(loaded->forward(images, {}).equal(wanted));
}

INSTANTIATE_TEST_SUITE_P(Families, Alone, ::testing::Values("vit", "fixed_positions", "resnet", "resmlp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(AloneErrors, TensorsThatAreMissingOrOfAnotherShapeAreNamed) {
  const arch::ModelConfig config = two_heads();
  const auto model = make_model(config);
  formula::fill(*model);
  const std::string expected =
      concat("[models.load] the weights do not match a ", arch::describe(config), ": ");
  SourceOf source(*model);
  for (auto& tensor : source.tensors()) {
    if (tensor.name == "param/head.weight") tensor.shape = {4, 24};
    if (tensor.name == "param/head.bias") tensor.dtype = "BF16";
    if (tensor.name == "param/norm.bias") tensor.name = "ema/norm.bias";
  }
  EXPECT_EQ(
      error_text([&] { load_model(config, source); }),
      expected +
          "no param/norm.bias, param/head.weight is F32 [4, 24] instead of F32 [5, 24], param/head.bias "
          "is BF16 [5] instead of F32 [5]");
  for (auto& tensor : source.tensors()) tensor.name = "model." + tensor.name;
  const std::string none = error_text([&] { load_model(config, source); });
  EXPECT_TRUE(none.ends_with(concat(", and ", source.tensors().size() - 1 - 3, " more"))) << none;
}

TEST(AloneErrors, WeightsWithoutAHead) {
  arch::VitConfig config = two_heads();
  const auto model = make_model(config);
  formula::fill(*model);
  SourceOf source(*model);
  config.classes = 0;
  EXPECT_EQ(error_text([&] { load_model(config, source); }),
            "[models.load] the weights have no classifier; tessera checkpoint convert --to-finetune "
            "--classes N adds one to train");
}

}  // namespace
}  // namespace tessera::models
