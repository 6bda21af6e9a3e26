// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/data/augment/policy_makers.h"

namespace tessera::data {
namespace {

/// "2,15" behind a policy's name and colon.
std::pair<std::string, std::string> two_values(const std::string& text) {
  const size_t colon = text.find(':'), comma = text.find(',');
  if (colon == std::string::npos || comma == std::string::npos || comma < colon) {
    user_error({.where = kPolicyWhere,
                .problem = concat("the policy is \"", text, "\""),
                .expected = concat(text.substr(0, colon), ":LAYERS,MAGNITUDE")});
  }
  return {text.substr(colon + 1, comma - colon - 1), text.substr(comma + 1)};
}

/// The four enhancements in a random order.
class ColorJitter : public Policy {
 public:
  struct Adjustment {
    Op op;
    double low, high;
  };
  explicit ColorJitter(std::vector<Adjustment> parts) : Policy(Style{}), parts_(std::move(parts)) {}

  std::vector<Operation> draw(Draws& draws, int64_t, int64_t) const override {
    std::vector<Operation> operations;
    for (const Adjustment& part : parts_) {
      Operation operation;
      operation.op = part.op;
      operation.amount = draws.uniform(part.low, part.high);
      operations.push_back(operation);
    }
    for (size_t i = operations.size(); i > 1; --i) {
      std::swap(operations[i - 1], operations[static_cast<size_t>(draws.below(static_cast<int64_t>(i)))]);
    }
    return operations;
  }

 private:
  const std::vector<Adjustment> parts_;
};

}  // namespace

double policy_number(const std::string& text, double low, double high, const std::string& piece,
                     const std::string& policy) {
  const auto value = parse_number<double>(text);
  if (!value || !(*value >= low && *value <= high)) {
    user_error({.where = kPolicyWhere,
                .problem = concat("\"", piece, "\" in the policy \"", policy, "\" has \"", text, "\""),
                .expected = concat("a number between ", low, " and ", high)});
  }
  return *value;
}

int64_t policy_integer(const std::string& text, int64_t low, int64_t high, const std::string& piece,
                       const std::string& policy) {
  const double value =
      policy_number(text, static_cast<double>(low), static_cast<double>(high), piece, policy);
  if (value != std::trunc(value)) {
    user_error({.where = kPolicyWhere,
                .problem = concat("\"", piece, "\" in the policy \"", policy, "\" has ", value),
                .expected = "a whole number"});
  }
  return static_cast<int64_t>(value);
}

std::unique_ptr<const Policy> parse_policy(const std::string& text, const PolicyOptions& options) {
  const std::string name = text.substr(0, text.find_first_of("-:"));
  if (name == "rand") return timm_rand_augment(text, options);
  if (auto policy = timm_auto_augment(text, options)) return policy;
  if (text == "ta_wide") return trivial_augment_wide(options);
  const std::string kind = text.substr(0, text.find(':'));
  if (kind == "bv-randaug") {
    const auto [layers, magnitude] = two_values(text);
    // Above 20 posterize would have to keep more than 8 bits.
    return big_vision_rand_augment(policy_integer(layers, 1, 1000, layers, text),
                                   policy_number(magnitude, 0, 20, magnitude, text));
  }
  if (kind == "tv-randaug") {
    const auto [layers, magnitude] = two_values(text);
    return torchvision_rand_augment(policy_integer(layers, 1, 1000, layers, text),
                                    policy_integer(magnitude, 0, 30, magnitude, text), options);
  }
  const std::vector<std::string> known = {
      "rand-m9-mstd0.5-inc1", "original",      "originalr", "v0", "v0r", "3a", "ta_wide",
      "bv-randaug:2,15",      "tv-randaug:2,9"};
  const std::string near = nearest(text, known);
  user_error({.where = kPolicyWhere,
              .problem = concat("unknown policy \"", text, "\""),
              .expected = concat("a policy such as ", join(known, ", ")),
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

std::unique_ptr<const Policy> color_jitter(const std::vector<float>& amounts) {
  const size_t count = amounts.size();
  if (count != 1 && count != 3 && count != 4) {
    user_error({.where = "data.color_jitter",
                .problem = concat("data.color_jitter has ", count, " values"),
                .expected = "one for all, three (brightness, contrast, saturation) or four (and hue)"});
  }
  constexpr std::array kOps = {Op::kBrightness, Op::kContrast, Op::kColor};
  std::vector<ColorJitter::Adjustment> parts;
  for (size_t i = 0; i < kOps.size(); ++i) {
    const double amount = static_cast<double>(amounts[count == 1 ? 0 : i]);
    if (!(amount >= 0))
      user_error({.where = "data.color_jitter",
                  .problem = concat("data.color_jitter has the value ", amount),
                  .expected = "values of at least 0"});
    if (amount > 0) parts.push_back({kOps[i], std::max(0.0, 1.0 - amount), 1.0 + amount});
  }
  if (count == 4) {
    const double hue = static_cast<double>(amounts[3]);
    if (!(hue >= 0 && hue <= 0.5))
      user_error({.where = "data.color_jitter",
                  .problem = concat("data.color_jitter has the hue ", hue),
                  .expected = "a hue between 0 and 0.5"});
    if (hue > 0) parts.push_back({Op::kHue, -hue, hue});
  }
  return std::make_unique<ColorJitter>(std::move(parts));
}

}  // namespace tessera::data
