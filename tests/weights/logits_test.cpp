// SPDX-License-Identifier: Apache-2.0
// What timm, torchvision and transformers compute from the files they wrote, Tessera computes from them too.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/train/entry.h"
#include "tests/weights/foreign.h"
#include "tests/weights/formula.h"

namespace tessera::weights {
namespace {
using namespace testing;

constexpr double kTolerance = 1e-4;

const nlohmann::json& expected_logits() {
  static const auto loaded = nlohmann::json::parse(std::ifstream(kFixtures / "expected.json"));
  return loaded;
}

double largest_difference(const std::vector<float>& found, const std::vector<double>& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i)
    largest = std::max(largest, std::abs(found[i] - wanted[i]));
  return largest;
}

std::string fixture_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class Logits : public ::testing::TestWithParam<const char*> {};

TEST_P(Logits, AreThoseOfTheProgramThatWroteTheFile) {
  const Model model = open_fixture(GetParam());
  const std::string written =
      GetParam() == std::string("hf_sharded") ? "hf" : GetParam();  // one model in two files
  const auto& config = model.description.config;
  const auto found = tessera_entry()->logits(
      {config, model.tensors.get(), formula(2 * config.channels * config.image_size * config.image_size)});
  const double error =
      largest_difference(found, expected_logits().at(written)["logits"].get<std::vector<double>>());
  EXPECT_LE(error, kTolerance);
  std::cout << GetParam() << ": largest difference " << error << "\n";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Logits,
                         ::testing::Values("timm.safetensors", "deit_distilled.safetensors", "deit3.pth",
                                           "mae_finetuned.pth", "timm_training.pth.tar", "torchvision.pth",
                                           "torchvision_tanh.pth", "hf", "hf_sharded", "hf_deit",
                                           "hf_deit_teacher", "hf_memory", "timm_hub", "google.npz",
                                           "big_vision.npz", "big_vision_gap.npz", "big_vision_scan.npz"),
                         fixture_name);

/// A source with a head that hands the features on.
class WithIdentityHead final : public checkpoint::TensorSource {
 public:
  WithIdentityHead(checkpoint::TensorSource& inner, int64_t width) : inner_(inner), width_(width) {
    tensors_ = inner.tensors();
    tensors_.push_back({"param/head.weight", "F32", {width, width}});
    tensors_.push_back({"param/head.bias", "F32", {width}});
  }
  const std::vector<checkpoint::Manifest::Tensor>& tensors() const override { return tensors_; }
  const checkpoint::Progress& progress() const override { return inner_.progress(); }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override {
    if (tensor < inner_.tensors().size()) return inner_.read(tensor, begin, out);
    std::vector<float> values(out.size() / sizeof(float));
    if (tensor == inner_.tensors().size()) {
      for (int64_t i = 0; i < width_; ++i) values[static_cast<size_t>(i * width_ + i)] = 1;
    }
    std::memcpy(out.data(), values.data(), out.size());
  }

 private:
  checkpoint::TensorSource& inner_;
  int64_t width_;
  std::vector<checkpoint::Manifest::Tensor> tensors_;
};

class Features : public ::testing::TestWithParam<const char*> {};

TEST_P(Features, OfAModelWithoutAHeadAreThoseOfTimm) {
  const Model model = open_fixture(GetParam());
  arch::VitConfig config = model.description.config;
  config.classes = config.width;
  WithIdentityHead source(*model.tensors, config.width);
  const auto found = tessera_entry()->logits({config, &source, formula(2 * 3 * 12 * 12)});
  const double error =
      largest_difference(found, expected_logits().at(GetParam())["features"].get<std::vector<double>>());
  EXPECT_LE(error, kTolerance);
  std::cout << GetParam() << ": largest difference " << error << "\n";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Features,
                         ::testing::Values("dinov2.pth", "mae_encoder.pth", "mae_pretrained.pth"),
                         fixture_name);

}  // namespace
}  // namespace tessera::weights
