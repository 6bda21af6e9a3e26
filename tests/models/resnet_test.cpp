// SPDX-License-Identifier: Apache-2.0
// ResNet against torchvision 0.26: same weights, statistics and images, so the same logits, loss, gradients
// and statistics afterwards. The fixture is made by make_resnet_fixture.py.
#include "tessera/models/resnet.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

using nlohmann::json;

arch::ResNetConfig resnet_config_of(const json& expected) {
  arch::ResNetConfig config;
  if (expected["config"].is_string()) {
    config = arch::resnet_config(expected["config"].get<std::string>());
  } else {
    config.blocks = expected["config"].get<std::vector<int64_t>>();
  }
  config.image_size = expected["image_size"];
  config.classes = expected["classes"];
  return config;
}

/// The formula's weights, and statistics that are not those of a fresh network.
void fill(ResNet& model, at::ScalarType dtype = at::kFloat) {
  const at::NoGradGuard no_grad;
  formula::fill(model, dtype);
  for (auto& item : model.named_buffers()) {
    if (item.value().dim() == 0) continue;
    const at::Tensor u = formula::uniform(item.key(), item.value().numel());
    item.value().set_data((item.key().ends_with("mean") ? u * 0.125 : 1.0 + u * 0.25).to(dtype));
  }
}

/// Largest error of logits.
void expect_logits(const at::Tensor& logits, const json& numbers, const char* mode) {
  const at::Tensor wanted = at::tensor(numbers.get<std::vector<double>>(), at::kDouble).view(logits.sizes());
  const double error = (logits.to(at::kDouble) - wanted).abs().max().item<double>();
  const double largest = wanted.abs().max().item<double>();
  EXPECT_LE(error, 1e-4) << mode;
  EXPECT_LE(error, 1e-5 * largest) << mode;
  std::cout << mode << ": logits up to " << largest << ", std " << wanted.std().item<double>() << ", error "
            << error << "\n";
}

class TorchvisionParity : public testing::TestWithParam<const char*> {};

at::Tensor loss_of(const at::Tensor& logits, int64_t batch) {
  return at::cross_entropy_loss(logits, formula::targets(batch, logits.size(1)));
}

TEST_P(TorchvisionParity, LogitsLossAndStatistics) {
  const json& expected = formula::fixture("resnet")["cases"][GetParam()];
  const int64_t batch = expected["batch"];
  ResNet model(resnet_config_of(expected));
  fill(model);
  const at::Tensor images = formula::images("images", batch, model.config());
  {
    const at::NoGradGuard no_grad;
    expect_logits(model.forward(images, {}), expected["evaluated"], "evaluation");
  }
  const at::Tensor logits = model.forward(images, {true, 1, {}});
  expect_logits(logits, expected["logits"], "training");
  EXPECT_NEAR(loss_of(logits, batch).item<double>(), expected["loss"].get<double>(), 1e-5);
  const auto buffers = model.named_buffers();
  ASSERT_EQ(buffers.size(), expected["statistics"].size());
  for (const auto& item : buffers) {
    const json& statistics = expected["statistics"].at(item.key());
    EXPECT_LE(formula::tensor_error(item.key(), item.value(), statistics), 1e-5) << item.key();
  }
}

// In float64, as the fixture: in float32 a value near 0 before a ReLU, or two alike in a maximum, decides
// otherwise, and gradients of single elements then differ by some thousandths of the largest.
TEST_P(TorchvisionParity, Gradients) {
  const json& expected = formula::fixture("resnet")["cases"][GetParam()];
  const int64_t batch = expected["batch"];
  ResNet model(resnet_config_of(expected));
  fill(model, at::kDouble);
  loss_of(model.forward(formula::images("images", batch, model.config()), {true, 1, {}}), batch).backward();
  double worst = 0;
  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), expected["gradients"].size());
  for (const auto& item : parameters) {
    ASSERT_TRUE(expected["gradients"].contains(item.key())) << item.key();
    const json& gradient = expected["gradients"][item.key()];
    ASSERT_EQ(item.value().sizes().vec(), gradient["shape"].get<std::vector<int64_t>>()) << item.key();
    worst = std::max(worst, formula::tensor_error(item.key(), item.value().grad(), gradient));
    EXPECT_LE(formula::tensor_error(item.key(), item.value().grad(), gradient), 1e-4) << item.key();
  }
  std::cout << "the gradients' worst error " << worst << "\n";
}

INSTANTIATE_TEST_SUITE_P(ResNet, TorchvisionParity, testing::Values("resnet18", "bottlenecks"),
                         [](const auto& info) { return std::string(info.param); });

arch::ResNetConfig tiny() {
  arch::ResNetConfig config;
  config.image_size = 32;
  config.classes = 5;
  config.blocks = {1, 1};
  config.base_width = 8;
  return config;
}

TEST(ResNet, SegmentsHoldAllThatBelongsToThem) {
  const ResNet model(tiny());
  ASSERT_EQ(model.segments().size(), 4U);
  size_t parameters = 0, buffers = 0;
  for (const Segment& segment : model.segments()) {
    parameters += segment.parameters.size();
    buffers += segment.buffers.size();
    const std::string start = segment.name + ".";
    for (const auto& [name, tensor] : segment.buffers) {
      EXPECT_TRUE(segment.name == "stem" ? name.starts_with("bn1.") : name.starts_with(start)) << name;
    }
  }
  EXPECT_EQ(parameters, model.named_parameters().size());
  EXPECT_EQ(buffers, model.named_buffers().size());
}

TEST(ResNet, StatisticsStayInEvaluationAndWithoutSamples) {
  ResNet model(tiny());
  allocate(model, 3);
  const auto values = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& buffer : model.buffers()) all.push_back(buffer.clone());
    return all;
  };
  const auto equal = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto& x, auto& y) { return x.equal(y); });
  };
  const auto before = values();
  model.forward(at::randn({4, 3, 32, 32}), {});
  EXPECT_TRUE(equal(before, values()));
  const at::Tensor none = model.forward(at::zeros({0, 3, 32, 32}), {true, 1, {}});
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_TRUE(equal(before, values()));
  none.sum().backward();
  for (const auto& item : model.named_parameters()) {
    EXPECT_EQ(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
  model.forward(at::randn({4, 3, 32, 32}), {true, 1, {}});
  EXPECT_FALSE(equal(before, values()));
}

TEST(ResNet, ComputesInTheDtypeOfItsParameters) {
  ResNet model(tiny()), narrow(tiny());
  allocate(model, 3);
  allocate(narrow, 3, at::kBFloat16);
  const at::Tensor images = at::randn({8, 3, 32, 32});
  const at::Tensor logits = model.forward(images, {true, 1, {}});
  const at::Tensor close = narrow.forward(images, {true, 1, {}});
  EXPECT_EQ(close.scalar_type(), at::kFloat);
  EXPECT_LE((logits - close).abs().max().item<double>(), 0.1);
  close.sum().backward();
  for (const at::Tensor& buffer : narrow.buffers()) EXPECT_NE(buffer.scalar_type(), at::kBFloat16);
}

TEST(ResNet, InitialValuesHaveTheDescribedDeviation) {
  for (const auto& spec : arch::parameters(arch::resnet_config("resnet18"))) {
    if (spec.name != "layer2.0.conv2.weight") continue;
    at::Tensor values = at::empty({spec.numel()});
    initialise(spec, 1, Region::whole(spec.shape), values);
    EXPECT_NEAR(values.std().item<double>(), spec.init_value, 0.01 * spec.init_value);
    EXPECT_GT(values.abs().max().item<double>(), 3.5 * spec.init_value) << "a normal is not cut";
  }
}

TEST(ResNet, ImagesOfAnotherSizeAreOurFault) {
  ResNet model(tiny());
  allocate(model, 1);
  EXPECT_THROW(model.forward(at::zeros({1, 3, 16, 32}), {}), InternalError);
}

}  // namespace
}  // namespace tessera::models
