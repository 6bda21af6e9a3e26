// SPDX-License-Identifier: Apache-2.0
// The policies' tables against timm's and torchvision's (make_augment_expected.py), and what is drawn from
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/data/augment/augmenter.h"
#include "tessera/data/augment/policy.h"
#include "tessera/data/augment/timm_ops.h"
#include "tessera/data/loader.h"
#include "tests/data/augment_picture.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

nlohmann::json expected_policy() {
  return nlohmann::json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/augment_expected.json"));
}

std::vector<Operation> draw(const Policy& policy, uint64_t key, int64_t width = 200, int64_t height = 100) {
  Draws draws(key);
  return policy.draw(draws, width, height);
}

TEST(Draws, AreUniformNormalAndBeta) {
  Draws draws(7);
  double sum = 0, squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const double x = draws.normal(3, 2);
    sum += x;
    squares += (x - 3) * (x - 3);
  }
  EXPECT_NEAR(sum / 20000, 3, 0.05);
  EXPECT_NEAR(squares / 20000, 4, 0.15);
  for (const double alpha : {1e-3, 0.2, 0.8, 1.0, 5.0}) {
    sum = squares = 0;
    for (int i = 0; i < 20000; ++i) {
      const double x = draws.beta(alpha);
      ASSERT_GE(x, 0);
      ASSERT_LE(x, 1);
      sum += x;
      squares += (x - 0.5) * (x - 0.5);
    }
    EXPECT_NEAR(sum / 20000, 0.5, 0.015) << alpha;
    EXPECT_NEAR(squares / 20000, 0.25 / (2 * alpha + 1), 0.004) << alpha;
  }
}

TEST(Policy, TheTablesAreTimms) {
  const auto json = expected_policy();
  for (const auto& [name, policies] : json["policies"].items()) {
    const auto ours = timm::auto_augment_policy(name);
    ASSERT_EQ(ours.size(), policies.size()) << name;
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].size(), policies[i].size());
      for (size_t k = 0; k < ours[i].size(); ++k) {
        const auto& step = policies[i][k];
        EXPECT_EQ(ours[i][k].op->name, step[0].get<std::string>()) << name << " " << i;
        EXPECT_EQ(ours[i][k].probability, step[1].get<double>()) << name << " " << i;
        EXPECT_EQ(ours[i][k].magnitude, step[2].get<double>()) << name << " " << i;
      }
    }
  }
  EXPECT_EQ(json["policies"].size(), 5U);
  for (const auto& [key, set] : json["sets"].items()) {
    const auto ours = timm::rand_augment_set(key.substr(0, key.find('/')), key.ends_with("1"));
    ASSERT_EQ(ours.size(), set.size()) << key;
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].name, set[i][0].get<std::string>()) << key;
      EXPECT_EQ(ours[i].weight, set[i][1].get<double>()) << key;
    }
  }
}

TEST(Policy, MagnitudesMeanWhatTheyMeanInTimm) {
  const auto levels = expected_policy()["levels"];
  EXPECT_GT(levels.size(), 100U);
  for (const auto& level : levels) {
    const std::string name = level[0];
    std::set<double> seen;
    for (uint64_t key = 0; key < 40; ++key) {
      Draws draws(key);
      seen.insert(timm::named_op(name)->amount(level[1], {200, 100}, draws));
    }
    std::vector<double> ours(seen.begin(), seen.end()), theirs = level[2];
    if (ours.size() == 1) theirs.resize(1);  // -0 and 0
    ASSERT_EQ(ours.size(), theirs.size()) << level;
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-12) << level;
  }
}

/// Counts of operations over many draws, and how many an image gets on average.
struct Counts {
  std::map<Op, int> of;
  double each = 0;
  Counts(const std::string& text, int images) {
    const auto policy = parse_policy(text, {});
    for (int i = 0; i < images; ++i) {
      for (const Operation& operation : draw(*policy, static_cast<uint64_t>(i))) {
        ++of[operation.op];
        each += 1.0 / images;
      }
    }
  }
};

TEST(Policy, RandAugmentDrawsEvenly) {
  const Counts counts("rand-m9-mstd0.5-inc1", 30000);
  EXPECT_NEAR(counts.each, 1.0, 0.02);  // two, each applied half of the time
  EXPECT_EQ(counts.of.size(), 15U);
  for (const auto& [op, count] : counts.of) EXPECT_NEAR(count, 2000, 200) << static_cast<int>(op);
  EXPECT_NEAR(Counts("rand-n3-p1", 100).each, 3.0, 1e-9);
  EXPECT_NEAR(Counts("rand-n3-p0.2", 30000).each, 0.6, 0.02);
}

TEST(Policy, RandAugmentVariesTheMagnitude) {
  const auto shears = [](const std::string& text) {
    std::vector<double> magnitudes;
    const auto policy = parse_policy(text, {});
    for (uint64_t key = 0; key < 20000; ++key) {
      for (const Operation& operation : draw(*policy, key)) {
        if (operation.op == Op::kShearX) magnitudes.push_back(std::abs(operation.amount) / 0.3 * 10);
      }
    }
    return magnitudes;
  };
  for (const double magnitude : shears("rand-m9")) EXPECT_NEAR(magnitude, 9, 1e-9);
  double sum = 0, squares = 0;
  const auto normal = shears("rand-m7-p1-mstd0.5");
  for (const double magnitude : normal) {
    sum += magnitude;
    squares += (magnitude - 7) * (magnitude - 7);
    EXPECT_LE(magnitude, 10);
  }
  EXPECT_NEAR(sum / static_cast<double>(normal.size()), 7, 0.05);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(normal.size())), 0.5, 0.03);
  double least = 100, most = 0;
  for (const double magnitude : shears("rand-m20-p1-mstd101-mmax30")) {
    least = std::min(least, magnitude);
    most = std::max(most, magnitude);
  }
  EXPECT_LT(least, 0.2);
  EXPECT_GT(most, 19.5);
  EXPECT_LE(most, 20);
  for (const double magnitude : shears("rand-m20-p1")) EXPECT_NEAR(magnitude, 10, 1e-9);
  for (const double magnitude : shears("rand-m20-p1-mmax15")) EXPECT_NEAR(magnitude, 15, 1e-9);
}

TEST(Policy, WeightedSetsGiveNoOperationTwice) {
  const auto policy = parse_policy("rand-n4-p1-tweights", {});
  std::map<Op, int> counts;
  for (uint64_t key = 0; key < 5000; ++key) {
    std::set<Op> seen;
    for (const Operation& operation : draw(*policy, key)) {
      EXPECT_TRUE(seen.insert(operation.op).second);
      ++counts[operation.op];
    }
    EXPECT_EQ(seen.size(), 4U);
  }
  EXPECT_GT(counts[Op::kRotate], counts[Op::kTranslateX]);
  EXPECT_GT(counts[Op::kTranslateX], 3 * counts[Op::kInvert]);
  EXPECT_EQ(draw(*parse_policy("rand-n15-p1-tweights", {}), 1).size(), 15U);
  Counts one("rand-n1-p1-t3aw", 34000);  // weights of 34 in all
  EXPECT_NEAR(one.of[Op::kBlur], 6000, 400);
  EXPECT_NEAR(one.of[Op::kRotate], 3000, 300);
  EXPECT_NEAR(one.of[Op::kInvert], 1000, 150);
  EXPECT_EQ(Counts("rand-p1-t3a", 300).of.size(), 3U);
}

TEST(Policy, AutoAugmentAndThreeAugment) {
  double probabilities = 0;
  for (const auto& steps : timm::auto_augment_policy("original")) {
    for (const auto& step : steps) probabilities += step.probability;
  }
  EXPECT_NEAR(Counts("original", 30000).each, probabilities / 25, 0.02);
  Counts three("3a", 3000);
  EXPECT_NEAR(three.each, 1.0, 1e-9);
  EXPECT_EQ(three.of.size(), 3U);
  for (const Op op : {Op::kSolarize, Op::kColor, Op::kBlur}) EXPECT_NEAR(three.of[op], 1000, 120);
  const auto policy = parse_policy("3a", {});
  double most = 0, least = 10;
  for (uint64_t key = 0; key < 3000; ++key) {
    const Operation operation = draw(*policy, key).at(0);
    if (operation.op == Op::kSolarize) {
      EXPECT_EQ(operation.amount, 128);
    }
    if (operation.op == Op::kColor) {
      EXPECT_EQ(operation.amount, 0);
    }
    if (operation.op != Op::kBlur) continue;
    least = std::min(least, operation.amount);
    most = std::max(most, operation.amount);
  }
  EXPECT_NEAR(least, 0.1, 0.02);
  EXPECT_NEAR(most, 2.0, 0.02);
  EXPECT_EQ(parse_policy("v0r-mstd0.5", {})->style().dialect, Dialect::kPillow);
}

const std::map<std::string, Op> kTorchvision = {
    {"Identity", Op::kIdentity},         {"ShearX", Op::kShearX},         {"ShearY", Op::kShearY},
    {"TranslateX", Op::kTranslateX},     {"TranslateY", Op::kTranslateY}, {"Rotate", Op::kRotate},
    {"Brightness", Op::kBrightness},     {"Color", Op::kColor},           {"Contrast", Op::kContrast},
    {"Sharpness", Op::kSharpness},       {"Posterize", Op::kPosterize},   {"Solarize", Op::kSolarize},
    {"AutoContrast", Op::kAutoContrast}, {"Equalize", Op::kEqualize},
};

bool enhances(Op op) {
  return op == Op::kBrightness || op == Op::kColor || op == Op::kContrast || op == Op::kSharpness;
}

TEST(Policy, TheWideSpacesAreTorchvisions) {
  const auto spaces = expected_policy()["spaces"];
  EXPECT_EQ(spaces.size(), 2U);
  for (const auto& [text, space] : spaces.items()) {
    std::map<Op, std::set<float>> seen;
    std::map<Op, int> counts;
    const auto policy = parse_policy(text, {});
    for (uint64_t key = 0; key < 20000; ++key) {
      for (const Operation& operation : draw(*policy, key)) {
        seen[operation.op].insert(static_cast<float>(operation.amount));
        ++counts[operation.op];
      }
    }
    ASSERT_EQ(seen.size(), 14U);
    for (const auto& [name, values] : space.items()) {
      const Op op = kTorchvision.at(name);
      std::set<float> wanted;
      for (const double value : values[0]) {
        const bool whole = op == Op::kTranslateX || op == Op::kTranslateY;
        const double bin = whole ? std::trunc(value) : value;
        for (const double sign : {1.0, -1.0}) {
          if (sign > 0 || values[1]) wanted.insert(static_cast<float>((enhances(op) ? 1 : 0) + sign * bin));
        }
      }
      ASSERT_EQ(seen[op].size(), wanted.size()) << text << " " << name;
      auto ours = seen[op].begin();
      for (const float value : wanted) EXPECT_NEAR(*ours++, value, 1e-5) << text << " " << name;
      const double layers = text == "ta_wide" ? 1 : 2;
      EXPECT_NEAR(counts[op], layers * 20000 / 14, 200) << text << " " << name;
    }
  }
}

TEST(Policy, BigVisionsRandAugment) {
  const auto amounts = [](const std::string& text) {
    std::map<Op, std::set<double>> seen;
    std::map<Op, int> counts;
    const auto policy = parse_policy(text, {});
    EXPECT_EQ(policy->style().dialect, Dialect::kTensorFlow);
    EXPECT_EQ(policy->style().fill, (Fill{128, 128, 128}));
    for (uint64_t key = 0; key < 16000; ++key) {
      const auto operations = draw(*policy, key);
      EXPECT_EQ(operations.size(), 2U);
      for (const Operation& operation : operations) {
        seen[operation.op].insert(std::round(operation.amount * 1e9) / 1e9);
        ++counts[operation.op];
        if (operation.op != Op::kCutout) continue;
        EXPECT_TRUE(operation.x >= 0 && operation.x < 200 && operation.y >= 0 && operation.y < 100);
      }
    }
    EXPECT_EQ(seen.size(), 16U);
    EXPECT_FALSE(seen.contains(Op::kIdentity));
    for (const auto& [op, count] : counts) EXPECT_NEAR(count, 2000, 200) << static_cast<int>(op);
    return seen;
  };
  using Set = std::set<double>;
  auto fifteen = amounts("bv-randaug:2,15");
  EXPECT_EQ(fifteen[Op::kRotate], (Set{-45, 45}));
  EXPECT_EQ(fifteen[Op::kShearY], (Set{-0.45, 0.45}));
  EXPECT_EQ(fifteen[Op::kTranslateX], (Set{-150, 150}));
  EXPECT_EQ(fifteen[Op::kPosterize], (Set{6}));
  EXPECT_EQ(fifteen[Op::kSolarize], (Set{128}));  // 384 in a byte
  EXPECT_EQ(fifteen[Op::kSolarizeAdd], (Set{165}));
  EXPECT_EQ(fifteen[Op::kCutout], (Set{60}));
  EXPECT_EQ(fifteen[Op::kSharpness], (Set{2.8}));
  auto ten = amounts("bv-randaug:2,10");
  EXPECT_EQ(ten[Op::kSolarize], (Set{0}));  // 256 in a byte: inverts everything
  EXPECT_EQ(ten[Op::kColor], (Set{1.9}));
  EXPECT_EQ(ten[Op::kPosterize], (Set{4}));
}

TEST(Policy, InterpolationIsFixedOrDrawn) {
  const auto filters = [](bool random) {
    std::map<Filter, int> counts;
    const auto policy = parse_policy("rand-n5-p1", {Filter::kBicubic, random, {}});
    for (uint64_t key = 0; key < 2000; ++key) {
      for (const Operation& operation : draw(*policy, key)) {
        if (operation.op == Op::kRotate) ++counts[operation.filter];
      }
    }
    return counts;
  };
  EXPECT_EQ(filters(false).size(), 1U);
  EXPECT_EQ(filters(false).begin()->first, Filter::kBicubic);
  auto drawn = filters(true);
  EXPECT_NEAR(static_cast<double>(drawn[Filter::kBicubic]) / drawn[Filter::kBilinear], 1, 0.25);
}

TEST(Policy, Errors) {
  const auto error = [](const std::string& text) {
    return error_text([&] { static_cast<void>(parse_policy(text, {})); });
  };
  EXPECT_EQ(
      error("augmix-m5"),
      "[data.auto_augment] unknown policy \"augmix-m5\": expected a policy such as rand-m9-mstd0.5-inc1, "
      "original, originalr, v0, v0r, 3a, ta_wide, bv-randaug:2,15, tv-randaug:2,9");
  EXPECT_EQ(error("orignal"),
            "[data.auto_augment] unknown policy \"orignal\": expected a policy such as rand-m9-mstd0.5-inc1, "
            "original, originalr, v0, v0r, 3a, ta_wide, bv-randaug:2,15, tv-randaug:2,9; did you mean "
            "\"original\"?");
  EXPECT_EQ(error("rand-m9-x3"),
            "[data.auto_augment] the policy \"rand-m9-x3\" has \"x3\": expected m, n, p, mstd, mmax or inc "
            "with a number, or tNAME");
  EXPECT_EQ(error("rand-m9-"),
            "[data.auto_augment] the policy \"rand-m9-\" has \"\": expected m, n, p, mstd, mmax or inc with "
            "a number, or tNAME");
  EXPECT_EQ(error("rand-w0"),
            "[data.auto_augment] the policy \"rand-w0\" has \"w0\": expected m, n, p, mstd, mmax or inc with "
            "a number, or tNAME");
  EXPECT_EQ(
      error("rand-m"),
      "[data.auto_augment] \"m\" in the policy \"rand-m\" has \"\": expected a number between 0 and 1000");
  EXPECT_EQ(error("rand-mstd0.5x"),
            "[data.auto_augment] \"mstd0.5x\" in the policy \"rand-mstd0.5x\" has \"0.5x\": expected a "
            "number between 0 and 1e+09");
  EXPECT_EQ(error("rand-p1.5"),
            "[data.auto_augment] \"p1.5\" in the policy \"rand-p1.5\" has \"1.5\": expected a number between "
            "0 and 1");
  EXPECT_EQ(error("rand-inc2"),
            "[data.auto_augment] \"inc2\" in the policy \"rand-inc2\" has \"2\": expected a number between 0 "
            "and 1");
  EXPECT_EQ(error("rand-n1.5"),
            "[data.auto_augment] \"n1.5\" in the policy \"rand-n1.5\" has 1.5: expected a whole number");
  EXPECT_EQ(error("rand-tmine"),
            "[data.auto_augment] the policy \"rand-tmine\" has the set of operations \"tmine\": expected "
            "tweights, t3a or t3aw");
  EXPECT_EQ(error("rand-n16-tweights"),
            "[data.auto_augment] the policy \"rand-n16-tweights\" has n16: expected at most 15 operations, "
            "because a weighted set gives no operation twice");
  EXPECT_EQ(error("v0-m9"),
            "[data.auto_augment] the policy \"v0-m9\" has \"m9\": expected only mstdX after v0");
  EXPECT_EQ(error("bv-randaug"),
            "[data.auto_augment] the policy is \"bv-randaug\": expected bv-randaug:LAYERS,MAGNITUDE");
  EXPECT_EQ(error("bv-randaug:2,21"),
            "[data.auto_augment] \"21\" in the policy \"bv-randaug:2,21\" has \"21\": expected a number "
            "between 0 and 20");
  EXPECT_EQ(error("tv-randaug:2,31"),
            "[data.auto_augment] \"31\" in the policy \"tv-randaug:2,31\" has \"31\": expected a number "
            "between 0 and 30");
}

}  // namespace
}  // namespace tessera::data
