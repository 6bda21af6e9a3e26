// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/models/segmented_model.h"

namespace tessera::models {
namespace {

// timm's trunc_normal_ cuts at +-2, not at two standard deviations: for a std of 0.02 that is 100 of them. We
// clamp there instead of redrawing (and so the attention pool's latent, which timm cuts at 2 std, is not
// cut).
constexpr double kCut = 2.0;

/// N(0, std^2) of which values beyond two standard deviations are drawn again, each time from another stream:
/// an element depends on no other, as in fill_normal.
void fill_normal_within_two(const arch::ParameterSpec& spec, uint64_t seed, uint64_t first,
                            std::span<float> out) {
  constexpr int kTries = 20;  // 0.0455^20 of the values are still beyond, and clamped
  constexpr float kNoCut = std::numeric_limits<float>::infinity();
  const auto std = static_cast<float>(spec.init_value);
  fill_normal(random_key(seed, spec.name), first, out, 0.0F, std, kNoCut);
  for (size_t i = 0; i < out.size(); ++i) {
    for (int attempt = 1; std::abs(out[i]) > 2.0F * std; ++attempt) {
      fill_normal(random_key(seed, spec.name + "/" + std::to_string(attempt)), first + i, out.subspan(i, 1),
                  0.0F, std, attempt < kTries ? kNoCut : 2.0F);
    }
  }
}

/// Values from element `first` of the whole tensor on.
void fill(const arch::ParameterSpec& spec, uint64_t seed, uint64_t first, std::span<float> values) {
  const uint64_t key = random_key(seed, spec.name);
  const auto value = static_cast<float>(spec.init_value);
  switch (spec.init) {
    case arch::Init::kZero:
      std::fill(values.begin(), values.end(), 0.0F);
      break;
    case arch::Init::kOne:
      std::fill(values.begin(), values.end(), 1.0F);
      break;
    case arch::Init::kConstant:
      std::fill(values.begin(), values.end(), value);
      break;
    case arch::Init::kTruncatedNormal:
      fill_normal(key, first, values, 0.0F, value, static_cast<float>(kCut / spec.init_value));
      break;
    case arch::Init::kNormalWithinTwo:
      fill_normal_within_two(spec, seed, first, values);
      break;
    case arch::Init::kNormal:
      fill_normal(key, first, values, 0.0F, value, std::numeric_limits<float>::infinity());
      break;
    case arch::Init::kUniform:
      fill_uniform(key, first, values);
      for (float& v : values) {
        v = (2.0F * v - 1.0F) * value;
      }
      break;
  }
}

}  // namespace

void initialise(const arch::ParameterSpec& spec, uint64_t seed, const Region& region, at::Tensor out) {
  TESSERA_CHECK(!spec.buffer, spec.name, " is not trained");
  TESSERA_CHECK(out.dim() == 1 && out.scalar_type() == at::kFloat && out.is_contiguous(), "out of ",
                spec.name);
  TESSERA_CHECK(region.fits(spec.shape) && out.numel() == region.numel(), spec.name, ' ', to_string(region),
                " of ", spec.numel(), " elements, into ", out.numel());
  const std::span<float> values(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel()));
  for (const SharedRun& run : SharedRuns::in_tensor(spec.shape, region)) {
    fill(spec, seed, static_cast<uint64_t>(run.a),
         values.subspan(static_cast<size_t>(run.b), static_cast<size_t>(run.count)));
  }
}

void allocate(SegmentedModel& model, uint64_t seed, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  for (const auto& spec : model.specs()) {
    if (spec.buffer) {
      continue;
    }
    at::Tensor values = at::empty({spec.numel()}, at::TensorOptions().dtype(at::kFloat));
    initialise(spec, seed, Region::whole(spec.shape), values);
    at::Tensor parameter = parameters[spec.name];
    parameter.set_data(values.view(spec.shape).to(dtype));
  }
}

}  // namespace tessera::models
