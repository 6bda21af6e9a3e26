// SPDX-License-Identifier: Apache-2.0
// What a model shows on the way: every unit's output, the tokens and what the classifier reads, as
// timm 1.0.31 has them. The fixture is made by make_features_fixture.py.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tessera/models/vit.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

using nlohmann::json;

TEST(Features, AreTimmsIntermediates) {
  const json& cases = formula::fixture("features");
  ASSERT_EQ(cases.size(), 4U);
  for (const auto& [name, expected] : cases.items()) {
    SCOPED_TRACE(name);
    VisionTransformer model(formula::vit_config_of(expected["config"]));
    formula::fill(model);
    std::map<std::string, at::Tensor> seen;
    ForwardContext context;
    context.every_token = true;
    context.observe = [&](const std::string& what, const at::Tensor& value) { seen[what] = value; };
    const at::NoGradGuard no_grad;
    const at::Tensor images = formula::images("images", 3, model.config());
    const at::Tensor logits = model.forward(images, context);
    ForwardContext unseen;
    unseen.every_token = true;
    EXPECT_TRUE(logits.equal(model.forward(images, unseen)));  // looking changes nothing
    // Few queries need no keys, which are sums in another order.
    EXPECT_TRUE(logits.allclose(model.forward(images, ForwardContext()), 1e-5, 1e-5));
    EXPECT_TRUE(seen.at("head").equal(logits));
    for (const auto& [what, value] : expected["values"].items()) {
      SCOPED_TRACE(what);
      ASSERT_TRUE(seen.contains(what));
      const at::Tensor found = seen.at(what).to(at::kDouble);
      ASSERT_EQ(found.sizes().vec(), value["shape"].get<std::vector<int64_t>>());
      const at::Tensor flat = found.reshape({-1});
      const auto sample = value["sample"].get<std::vector<double>>();
      const double norm = value["norm"];
      const double scale = norm / std::sqrt(static_cast<double>(flat.numel()));
      EXPECT_NEAR(flat.norm().item<double>(), norm, 1e-5 * norm);
      for (size_t i = 0; i < sample.size(); ++i) {
        const auto index = static_cast<int64_t>(formula::word(what + "/sample", i) % flat.numel());
        EXPECT_NEAR(flat[index].item<double>(), sample[i], 1e-5 * std::max(1.0, scale)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::models
