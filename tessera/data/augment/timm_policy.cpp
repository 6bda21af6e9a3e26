// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/augment/policy_makers.h"
#include "tessera/data/augment/timm_ops.h"

namespace tessera::data {
namespace {

using timm::MagnitudeNoise, timm::Step;

Style timm_style(const PolicyOptions& options) { return {Dialect::kPillow, options.mean}; }

timm::Canvas canvas(int64_t width, int64_t height) {
  return {static_cast<double>(width), static_cast<double>(height)};
}

/// One of several short sequences of operations, each as likely.
class AutoAugment : public Policy {
 public:
  AutoAugment(std::vector<std::vector<Step>> policies, MagnitudeNoise noise, const PolicyOptions& options)
      : Policy(timm_style(options)), policies_(std::move(policies)), noise_(noise), options_(options) {}

  std::vector<Operation> draw(Draws& draws, int64_t width, int64_t height) const override {
    std::vector<Operation> operations;
    const auto chosen = static_cast<size_t>(draws.below(static_cast<int64_t>(policies_.size())));
    for (const Step& step : policies_[chosen]) {
      draw_step(step, noise_, options_, canvas(width, height), draws, &operations);
    }
    return operations;
  }

 private:
  const std::vector<std::vector<Step>> policies_;
  const MagnitudeNoise noise_;
  const PolicyOptions options_;
};

struct RandAugmentOptions {
  double magnitude = timm::kLevels, probability = 0.5;
  int64_t layers = 2;
  bool increasing = false;
  std::string set;
  MagnitudeNoise noise;
};

/// A number of operations of one set, each applied with one probability at one magnitude.
class RandAugment : public Policy {
 public:
  RandAugment(const RandAugmentOptions& rand, const PolicyOptions& options)
      : Policy(timm_style(options)), rand_(rand), options_(options) {
    for (const auto& [name, weight] : timm::rand_augment_set(rand.set, rand.increasing)) {
      steps_.push_back({timm::named_op(name), rand.probability, rand.magnitude});
      if (weight > 0) weights_.push_back(weight);
    }
  }
  size_t size() const { return steps_.size(); }
  bool weighted() const { return !weights_.empty(); }

  std::vector<Operation> draw(Draws& draws, int64_t width, int64_t height) const override {
    std::vector<Operation> operations;
    for (const size_t chosen : choose(draws)) {
      draw_step(steps_[chosen], rand_.noise, options_, canvas(width, height), draws, &operations);
    }
    return operations;
  }

 private:
  /// Which operations; where there are weights none comes twice.
  std::vector<size_t> choose(Draws& draws) const {
    std::vector<size_t> chosen;
    std::vector<double> weights = weights_;
    for (int64_t layer = 0; layer < rand_.layers; ++layer) {
      if (!weighted()) {
        chosen.push_back(static_cast<size_t>(draws.below(static_cast<int64_t>(steps_.size()))));
        continue;
      }
      double left = draws.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
      size_t at = 0, last = 0;
      for (; at < weights.size() && left >= 0; ++at) {
        if (weights[at] == 0) continue;
        last = at;
        left -= weights[at];
      }
      chosen.push_back(last);
      weights[last] = 0;
    }
    return chosen;
  }

  const RandAugmentOptions rand_;
  const PolicyOptions options_;
  std::vector<Step> steps_;
  std::vector<double> weights_;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('-', begin);
    pieces.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return pieces;
}

double magnitude_std(const std::string& value, const std::string& piece, const std::string& text) {
  const double std = policy_number(value, 0, 1e9, piece, text);
  return std > 100 ? std::numeric_limits<double>::infinity() : std;
}

void read_piece(const std::string& piece, const std::string& text, RandAugmentOptions* rand) {
  if (piece.starts_with("t")) {
    rand->set = piece.substr(1);
    if (!rand->set.empty() && !timm::rand_augment_set(rand->set, true).empty()) return;
    user_error({.where = kPolicyWhere,
                .problem = concat("the policy \"", text, "\" has the set of operations \"", piece, "\""),
                .expected = "tweights, t3a or t3aw"});
  }
  const size_t digits = piece.find_first_of("0123456789");
  const std::string key = piece.substr(0, digits);
  const std::string value = digits == std::string::npos ? "" : piece.substr(digits);
  if (key == "m") {
    rand->magnitude = policy_number(value, 0, 1000, piece, text);
  } else if (key == "n") {
    rand->layers = policy_integer(value, 1, 1000, piece, text);
  } else if (key == "p") {
    rand->probability = policy_number(value, 0, 1, piece, text);
  } else if (key == "mstd") {
    rand->noise.std = magnitude_std(value, piece, text);
  } else if (key == "mmax") {
    // timm takes 0 for "not given"
    const double max = policy_number(value, 0, 1000, piece, text);
    rand->noise.max = max > 0 ? max : timm::kLevels;
  } else if (key == "inc") {
    rand->increasing = policy_integer(value, 0, 1, piece, text) == 1;
  } else {
    user_error({.where = kPolicyWhere,
                .problem = concat("the policy \"", text, "\" has \"", piece, "\""),
                .expected = "m, n, p, mstd, mmax or inc with a number, or tNAME"});
  }
}

}  // namespace

PolicyPointer timm_rand_augment(const std::string& text, const PolicyOptions& options) {
  RandAugmentOptions rand;
  const std::vector<std::string> pieces = split(text);
  for (size_t i = 1; i < pieces.size(); ++i) read_piece(pieces[i], text, &rand);
  auto policy = std::make_unique<RandAugment>(rand, options);
  if (policy->weighted() && static_cast<size_t>(rand.layers) > policy->size()) {
    user_error({.where = kPolicyWhere,
                .problem = concat("the policy \"", text, "\" has n", rand.layers),
                .expected = concat("at most ", policy->size(),
                                   " operations, because a weighted set gives no operation twice")});
  }
  return policy;
}

PolicyPointer timm_auto_augment(const std::string& text, const PolicyOptions& options) {
  const std::vector<std::string> pieces = split(text);
  auto policies = timm::auto_augment_policy(pieces[0]);
  if (policies.empty()) return nullptr;
  MagnitudeNoise noise;
  for (size_t i = 1; i < pieces.size(); ++i) {
    if (!pieces[i].starts_with("mstd")) {
      user_error({.where = kPolicyWhere,
                  .problem = concat("the policy \"", text, "\" has \"", pieces[i], "\""),
                  .expected = concat("only mstdX after ", pieces[0])});
    }
    noise.std = magnitude_std(pieces[i].substr(4), pieces[i], text);
  }
  return std::make_unique<AutoAugment>(std::move(policies), noise, options);
}

}  // namespace tessera::data
