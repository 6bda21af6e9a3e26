// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/vit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ops/cpu/cpu.h"
#include "tests/models/formula.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::models {
namespace {

struct Variant {
  const char* name;
  void (*change)(arch::VitConfig&);
};

const Variant kVariants[] = {
    {"class_token", [](arch::VitConfig&) {}},
    {"gap",
     [](arch::VitConfig& c) {
       c.pool = arch::Pool::kAverage;
       c.class_token = false;
     }},
    {"map", [](arch::VitConfig& c) { c.pool = arch::Pool::kAttention; }},
    {"registers_layer_scale",
     [](arch::VitConfig& c) {
       c.registers = 3;
       c.layer_scale = 0.1;
     }},
    {"qk_norm", [](arch::VitConfig& c) { c.qk_norm = true; }},
    {"sin_cos",
     [](arch::VitConfig& c) {
       c.position_embedding = arch::PositionEmbedding::kSinCos2d;
       c.registers = 2;
     }},
    {"tanh_head", [](arch::VitConfig& c) { c.head = arch::Head::kTanh; }},
    {"one_block", [](arch::VitConfig& c) { c.depth = 1; }},
};

class Variants : public testing::TestWithParam<Variant> {
 protected:
  arch::VitConfig config() const {
    arch::VitConfig config = formula::small_vit();
    GetParam().change(config);
    return config;
  }
};

TEST_P(Variants, ParametersAreThoseOfTheDescriptionAndStartHollow) {
  const VisionTransformer model(config());
  const auto parameters = model.named_parameters();
  const auto buffers = model.named_buffers();
  size_t index = 0;
  for (const auto& spec : arch::parameters(config())) {
    if (spec.buffer) {
      ASSERT_TRUE(buffers.contains(spec.name));
      EXPECT_EQ(buffers[spec.name].sizes().vec(), spec.shape);
      continue;
    }
    ASSERT_LT(index, parameters.size());
    EXPECT_EQ(parameters[index].key(), spec.name);
    EXPECT_EQ(parameters[index].value().sizes().vec(), spec.shape);
    EXPECT_EQ(parameters[index].value().storage().nbytes(), 0U) << spec.name;
    EXPECT_TRUE(parameters[index].value().requires_grad());
    ++index;
  }
  EXPECT_EQ(index, parameters.size());
}

TEST_P(Variants, SegmentsHoldEveryParameterOnceInOrder) {
  const VisionTransformer model(config());
  const auto parameters = model.named_parameters();
  size_t index = 0;
  for (const auto& segment : model.segments()) {
    for (const auto& [name, tensor] : segment.parameters) {
      EXPECT_EQ(name, parameters[index].key());
      EXPECT_TRUE(tensor.is_same(parameters[index].value()));
      ++index;
    }
  }
  EXPECT_EQ(index, parameters.size());
  EXPECT_EQ(model.segments().size(), static_cast<size_t>(config().depth) + 2);
  EXPECT_EQ(model.segments().front().name, "stem");
  EXPECT_EQ(model.segments()[1].name, "blocks.0");
  EXPECT_EQ(model.segments().back().name, "head");
}

TEST_P(Variants, EveryParameterGetsAGradientInEitherType) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    VisionTransformer model(config());
    formula::fill(model, dtype);
    const at::Tensor logits = model.forward(formula::images("images", 3, config()), {true, 5, {0, 1, 2}});
    EXPECT_EQ(logits.sizes().vec(), (std::vector<int64_t>{3, 10}));
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    logits.square().sum().backward();
    for (const auto& item : model.named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), dtype);
      EXPECT_GT(item.value().grad().abs().max().item<double>(), 0.0) << item.key();
    }
  }
}

TEST_P(Variants, Bf16FollowsFp32) {
  VisionTransformer model(config());
  const at::Tensor images = formula::images("images", 3, config());
  formula::fill(model);
  const at::Tensor exact = model.forward(images, {});
  formula::fill(model, at::kBFloat16);
  const at::Tensor logits = model.forward(images, {});
  EXPECT_LT((logits - exact).abs().max().item<double>(), 0.1 * exact.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(All, Variants, testing::ValuesIn(kVariants),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(VisionTransformer, ReadsWhateverMemoryItsParametersHaveAtTheCall) {
  VisionTransformer model(formula::small_vit());
  const at::Tensor images = formula::images("images", 2, formula::small_vit());
  allocate(model, 1);
  const at::Tensor first = model.forward(images, {});
  allocate(model, 2);
  const at::Tensor second = model.forward(images, {});
  EXPECT_FALSE(at::equal(first, second));
  allocate(model, 1);
  EXPECT_TRUE(at::equal(first, model.forward(images, {})));
}

// What a shard unit does: parameters are views of one flat buffer, whose memory goes after forward and comes
// back before backward.
TEST(VisionTransformer, MemoryMayGoBetweenForwardAndBackward) {
  VisionTransformer model(formula::small_vit()), plain(formula::small_vit());
  allocate(plain, 3);
  const at::Tensor images = formula::images("images", 2, formula::small_vit());
  plain.forward(images, {true, 1, {0, 1}}).sum().backward();

  const auto& block = model.segments()[1];
  allocate(model, 3);
  int64_t count = 0;
  for (const auto& [name, parameter] : block.parameters) {
    count += parameter.numel();
  }
  at::Tensor flat = at::empty({count});
  std::vector<at::Tensor> views;
  int64_t begin = 0;
  for (auto [name, parameter] : block.parameters) {
    views.push_back(flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    views.back().copy_(parameter.detach());
    parameter.set_data(views.back());
    begin += parameter.numel();
  }
  const at::Tensor saved = flat.clone();
  const at::Tensor sum = model.forward(images, {true, 1, {0, 1}}).sum();
  flat.zero_();
  flat.copy_(saved);
  sum.backward();
  const auto expected = plain.named_parameters();
  for (const auto& item : model.named_parameters()) {
    EXPECT_TRUE(at::equal(item.value().grad(), expected[item.key()].grad())) << item.key();
  }
}

// By LibTorch's operations, as on a GPU: kernels of CPUs make a GELU's output within their products.
TEST(VisionTransformer, KeptActivationsChangeNoBitAndTakeThePredictedMemory) {
  const ops::WithoutKernels foreign;
  for (const auto& change : std::vector<void (*)(arch::VitConfig&)>{
           [](arch::VitConfig&) {}, [](arch::VitConfig& c) { c.qk_norm = true; },
           [](arch::VitConfig& c) { c.dropout = 0.2; },
           [](arch::VitConfig& c) {
             c.pool = arch::Pool::kAverage;
             c.class_token = false;
           }}) {
    arch::VitConfig config = formula::small_vit();
    change(config);
    const at::Tensor images = formula::images("images", 2, config);
    std::vector<int64_t> kept;
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool keeps : {true, false}) {
      VisionTransformer model(config);
      formula::fill(model);
      ForwardContext context{true, 1, {0, 1}};
      context.keeps_activations = keeps;
      const ops::LiveBytes live;
      const at::Tensor logits = model.forward(images, context);
      kept.push_back(live.now());
      logits.sum().backward();
      gradients.emplace_back();
      for (const auto& item : model.named_parameters()) gradients.back().push_back(item.value().grad());
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
    }
    double more = 0;
    for (size_t unit = 0; unit < arch::unit_names(config).size(); ++unit) {
      more += 2 * (arch::activations(config, 4, true).units[unit].all -
                   arch::activations(config, 4, false).units[unit].all);
    }
    EXPECT_EQ(static_cast<double>(kept[0] - kept[1]), more);
  }
}

TEST(VisionTransformer, ImagesOfAnotherSizeAreOurFault) {
  VisionTransformer model(formula::small_vit());
  allocate(model, 1);
  EXPECT_THROW(model.forward(at::zeros({1, 1, 8, 16}), {}), InternalError);
}

TEST(VisionTransformer, AWrongConfigIsRefused) {
  arch::VitConfig config = formula::small_vit();
  config.heads = 5;
  EXPECT_THROW(VisionTransformer{config}, UserError);
}

TEST(VisionTransformer, ImagesMayHaveAnyFloatTypeAndStrides) {
  VisionTransformer model(formula::small_vit());
  allocate(model, 1);
  const at::Tensor images = at::round(formula::images("images", 2, formula::small_vit()) * 64) / 64;
  const at::Tensor logits = model.forward(images, {});
  EXPECT_TRUE(at::equal(logits, model.forward(images.to(at::kDouble), {})));
  EXPECT_TRUE(at::equal(logits, model.forward(images.to(at::kBFloat16), {})));
  const at::Tensor strided = images.transpose(2, 3).contiguous().transpose(2, 3);
  EXPECT_TRUE(at::equal(logits, model.forward(strided, {})));
}

TEST(VisionTransformer, SinCosPositionsAreAFunctionOfRowAndColumn) {
  arch::VitConfig config = formula::small_vit();  // 4 x 4 patches, width 32: quarters of 8
  config.position_embedding = arch::PositionEmbedding::kSinCos2d;
  const VisionTransformer model(config);
  const at::Tensor table = model.named_buffers()["pos_embed"];
  ASSERT_EQ(table.sizes().vec(), (std::vector<int64_t>{1, 17, 32}));
  EXPECT_EQ(table[0][0].abs().max().item<float>(), 0.0F);  // the class token
  const at::Tensor patch = table[0][1 + 2 * 4 + 3];        // row 2, column 3
  for (int i = 0; i < 8; ++i) {
    const double frequency = std::pow(10000.0, -i / 7.0);
    EXPECT_NEAR(patch[i].item<double>(), std::sin(3 * frequency), 1e-6);
    EXPECT_NEAR(patch[8 + i].item<double>(), std::cos(3 * frequency), 1e-6);
    EXPECT_NEAR(patch[16 + i].item<double>(), std::sin(2 * frequency), 1e-6);
    EXPECT_NEAR(patch[24 + i].item<double>(), std::cos(2 * frequency), 1e-6);
  }
}

TEST(Initialise, IsTheSameForAnySplit) {
  arch::VitConfig config = formula::small_vit();
  std::vector<arch::ParameterSpec> specs = arch::parameters(config);
  config.initial_values = arch::InitialValues::kBigVision;
  for (auto& spec : arch::parameters(config)) specs.push_back(std::move(spec));
  for (const auto& spec : specs) {
    at::Tensor whole = at::empty({spec.numel()});
    initialise(spec, 42, Region::whole(spec.shape), whole);
    for (const int64_t pieces : {2, 3, 7}) {
      at::Tensor joined = at::empty({spec.numel()});
      for (int64_t p = 0; p < pieces; ++p) {
        const int64_t begin = spec.numel() * p / pieces, end = spec.numel() * (p + 1) / pieces;
        initialise(spec, 42, Region::interval(spec.shape, begin, end), joined.narrow(0, begin, end - begin));
      }
      EXPECT_TRUE(at::equal(whole, joined)) << spec.name << " in " << pieces;
    }
  }
}

// Columns, rows and inner boxes, some of them cut into intervals, against LibTorch's slices of the whole.
TEST(Initialise, IsTheSameForAnyBox) {
  for (const auto& spec : arch::parameters(formula::small_vit())) {
    at::Tensor whole = at::empty({spec.numel()});
    initialise(spec, 42, Region::whole(spec.shape), whole);
    for (size_t cut = 0; cut < spec.shape.size(); ++cut) {
      Box box = Box::whole(spec.shape);
      at::Tensor expected = whole.view(spec.shape);
      for (size_t d = cut; d < spec.shape.size(); d += 2) {
        box.dims[d] = {spec.shape[d] / 3, (spec.shape[d] * 3 + 3) / 4};
        expected = expected.narrow(static_cast<int64_t>(d), box.dims[d].begin, box.dims[d].size());
      }
      expected = expected.flatten();
      for (const int64_t begin : {int64_t{0}, box.numel() / 3}) {
        const int64_t end = begin == 0 ? box.numel() : box.numel() - 1;
        at::Tensor values = at::empty({std::max<int64_t>(0, end - begin)});
        if (end < begin) continue;
        initialise(spec, 42, {box, begin, end}, values);
        EXPECT_TRUE(at::equal(values, expected.slice(0, begin, end))) << spec.name << ' ' << to_string(box);
      }
    }
  }
}

TEST(Initialise, HasTheDescribedDistribution) {
  at::Tensor normal = at::empty({30000});
  const arch::ParameterSpec wide{"w", {30000}, arch::Init::kTruncatedNormal, 0.02, "head", true, false};
  initialise(wide, 1, Region::whole(wide.shape), normal);
  EXPECT_NEAR(normal.mean().item<double>(), 0.0, 0.0005);
  EXPECT_NEAR(normal.std().item<double>(), 0.02, 0.0005);
  at::Tensor uniform = at::empty({30000});
  const arch::ParameterSpec flat{"u", {30000}, arch::Init::kUniform, 0.25, "stem", true, false};
  initialise(flat, 1, Region::whole(flat.shape), uniform);
  EXPECT_NEAR(uniform.std().item<double>(), 0.5 / std::sqrt(12.0), 0.005);
  EXPECT_LE(uniform.abs().max().item<double>(), 0.25);
  at::Tensor other = at::empty({30000});
  initialise(wide, 2, Region::whole(wide.shape), other);
  EXPECT_FALSE(at::equal(normal, other));
  initialise({"c", {4}, arch::Init::kConstant, 0.125, "", false, false}, 1, Region::whole({4}),
             other.narrow(0, 0, 4));
  EXPECT_TRUE(at::equal(other.narrow(0, 0, 4), at::full({4}, 0.125F)));
}

TEST(Initialise, ValuesBeyondTwoDeviationsAreDrawnAgain) {
  constexpr double kStd = 0.5, kStdWithinTwo = 0.87962566103423978;
  at::Tensor values = at::empty({100000});
  initialise({"w", {100000}, arch::Init::kNormalWithinTwo, kStd, "head", true, false}, 1,
             Region::whole({100000}), values);
  EXPECT_NEAR(values.mean().item<double>(), 0.0, 0.005);
  EXPECT_NEAR(values.std().item<double>(), kStd * kStdWithinTwo, 0.005);
  EXPECT_LE(values.abs().max().item<double>(), 2 * kStd);
  EXPECT_EQ(values.eq(2 * kStd).sum().item<int64_t>(), 0) << "clamped, not drawn again";
  // Within them it is the normal's density: 68.27 of 95.45 % lie within one.
  const double within_one = values.abs().lt(kStd).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(within_one, 0.6827 / 0.9545, 0.005);
}

TEST(Initialise, AllocateGivesEveryParameterItsInitialValue) {
  VisionTransformer model(formula::small_vit());
  allocate(model, 9, at::kBFloat16);
  const auto parameters = model.named_parameters();
  for (const auto& spec : arch::parameters(formula::small_vit())) {
    at::Tensor value = at::empty({spec.numel()});
    initialise(spec, 9, Region::whole(spec.shape), value);
    EXPECT_TRUE(at::equal(parameters[spec.name], value.view(spec.shape).to(at::kBFloat16))) << spec.name;
  }
}

TEST(HollowTensor, HasSizesAndNoMemory) {
  const at::Tensor tensor = hollow_tensor({1 << 20, 1 << 20}, at::kBFloat16);
  EXPECT_EQ(tensor.numel(), int64_t{1} << 40);
  EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
  EXPECT_EQ(tensor.storage().nbytes(), 0U);
}

// A model far larger than this machine's memory can be described.
TEST(HollowTensor, TenBillionParametersTakeNoMemory) {
  const VisionTransformer model(arch::vit_config("10B/14"));
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) {
    count += parameter.numel();
  }
  EXPECT_EQ(count, arch::parameter_count(model.config()));
}

}  // namespace
}  // namespace tessera::models
