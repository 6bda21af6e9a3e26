// The memory formula. docs/memory.md derives every term; the names here are those of that page.
#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

constexpr double kFloatBytes = 4;

struct UnitSize {
  double parameters = 0;  // trained
  double buffers = 0;
};

/// Bytes of one micro-batch that wait for backward.
struct UnitActivations {
  double input = 0;  // what entered the unit; all that recompute keeps
  double all = 0;    // with the input
};

std::map<std::string, UnitSize> unit_sizes(const arch::VitConfig& config) {
  std::map<std::string, UnitSize> sizes;
  for (const auto& spec : arch::parameters(config)) {
    UnitSize& size = sizes[spec.unit];
    (spec.buffer ? size.buffers : size.parameters) += static_cast<double>(spec.numel());
  }
  return sizes;
}

void check_units(const arch::VitConfig& config, const Plan& plan) {
  const Plan expected = uniform_plan(config, plan.world, Level::kZero3, false, plan.prefetch);
  if (plan.units.size() != expected.units.size()) {
    user_error("plan.predict_memory", "the plan must have the model's ", expected.units.size(),
               " units: found ", plan.units.size());
  }
  for (size_t i = 0; i < plan.units.size(); ++i) {
    if (plan.units[i].name == expected.units[i].name) continue;
    user_error("plan.predict_memory", "unit ", i, " of the plan must be \"", expected.units[i].name,
               "\": found \"", escape(plan.units[i].name), "\"");
  }
}

double padded(double parameters, int64_t world) {
  const auto ranks = static_cast<double>(world);
  return std::ceil(parameters / ranks) * ranks;
}

double state_bytes(const UnitSize& size, Level level, int64_t world) {
  const double share = padded(size.parameters, world) / static_cast<double>(world);
  switch (level) {
    case Level::kReplicate:
      return 4 * kFloatBytes * size.parameters;
    case Level::kZero1:
      return 3 * kFloatBytes * share + kFloatBytes * size.parameters;
    case Level::kZero2:
    case Level::kZero3:
      return 4 * kFloatBytes * share;
  }
  return 0;
}

/// Compute-dtype parameters that stay on the rank for the whole step.
double kept_bytes(const UnitSize& size, Level level, int64_t world, double compute) {
  double bytes = compute * size.buffers;
  const bool masters_serve = level == Level::kReplicate && compute == kFloatBytes;
  if (level != Level::kZero3 && !masters_serve) bytes += compute * padded(size.parameters, world);
  return bytes;
}

/// The gradient of one unit between its computation and the place where states hold it.
double gradient_bytes(const UnitSize& size, Level level, const Plan& plan, const Precision& precision) {
  const double elements = padded(size.parameters, plan.world);
  const bool in_place = level <= Level::kZero1 && precision.compute_bytes == kFloatBytes;
  double bytes = in_place ? 0 : static_cast<double>(precision.compute_bytes) * elements;
  if (level != Level::kReplicate && plan.world > 1) {
    bytes += static_cast<double>(precision.reduce_bytes) * elements;
  }
  return bytes;
}

double gathered_bytes(const Plan& plan, std::map<std::string, UnitSize>& sizes, const Precision& precision) {
  const auto compute = static_cast<double>(precision.compute_bytes);
  std::vector<double> gathered;  // 0 for units that are not gathered and freed
  double kept = 0, gradient = 0;
  for (const auto& unit : plan.units) {
    const UnitSize& size = sizes[unit.name];
    kept += kept_bytes(size, unit.level, plan.world, compute);
    gradient = std::max(gradient, gradient_bytes(size, unit.level, plan, precision));
    gathered.push_back(unit.level == Level::kZero3 ? compute * padded(size.parameters, plan.world) : 0);
  }
  double window = 0;  // the largest 1 + prefetch neighbours
  for (size_t first = 0; first < gathered.size(); ++first) {
    double sum = 0;
    for (size_t i = first; i < gathered.size() && i - first <= static_cast<size_t>(plan.prefetch); ++i) {
      sum += gathered[i];
    }
    window = std::max(window, sum);
  }
  return kept + window + gradient;
}

/// One image; `c` bytes an element.
UnitActivations stem_activations(const arch::VitConfig& config, double c) {
  const auto tokens = static_cast<double>(config.tokens());
  const auto width = static_cast<double>(config.width);
  const double pixels = static_cast<double>(config.channels * config.image_size) * config.image_size;
  const double image = kFloatBytes * pixels + (c < kFloatBytes ? c * pixels : 0);
  const double masks = config.dropout > 0 ? c * tokens * width : 0;
  return {image, image + masks};
}

UnitActivations block_activations(const arch::VitConfig& config, double c) {
  const auto tokens = static_cast<double>(config.tokens());
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  const auto heads = static_cast<double>(config.heads);
  double elements = 8 * d + 2 * m;
  double statistics = 2 * 2 + heads;  // mean and 1/std of two norms, logsumexp
  if (config.qk_norm) {
    elements += 2 * d;
    statistics += 2 * 2 * heads;
  }
  if (config.layer_scale > 0) elements += 2 * d;
  if (config.dropout > 0) elements += 2 * d + m;
  return {c * tokens * d, tokens * (c * elements + kFloatBytes * statistics)};
}

UnitActivations head_activations(const arch::VitConfig& config, double c) {
  const auto tokens = static_cast<double>(config.tokens()), patches = static_cast<double>(config.patches());
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  const double logits = 2 * kFloatBytes * static_cast<double>(config.classes);
  const double input = c * tokens * d;
  double all = logits + c * 2 * d;  // pooled, and the last layer's input; a mean needs no input for backward
  if (config.pool != arch::Pool::kAverage) all += 2 * input + 2 * kFloatBytes * tokens;
  if (config.pool == arch::Pool::kAttention) all += c * (2 * patches * d + 4 * d + 2 * m);
  return {input, all};
}

double activation_bytes(const arch::VitConfig& config, const Plan& plan, double c) {
  double kept = 0, again = 0;
  for (const auto& unit : plan.units) {
    const UnitActivations one = unit.name == "stem"   ? stem_activations(config, c)
                                : unit.name == "head" ? head_activations(config, c)
                                                      : block_activations(config, c);
    kept += unit.recompute ? one.input : one.all;
    if (unit.recompute) again = std::max(again, one.all - one.input);
  }
  const auto d = static_cast<double>(config.width), m = static_cast<double>(config.mlp_width);
  const double working = c * static_cast<double>(config.tokens()) * (d + std::max(2 * m, 4 * d));
  return kept + again + working;
}

}  // namespace

Memory predict_memory(const arch::VitConfig& config, const Plan& plan, const Precision& precision,
                      int64_t batch) {
  check_units(config, plan);
  auto sizes = unit_sizes(config);
  Memory memory;
  for (const auto& unit : plan.units) {
    memory.states += state_bytes(sizes[unit.name], unit.level, plan.world);
  }
  memory.gathered = gathered_bytes(plan, sizes, precision);
  memory.activations = static_cast<double>(batch) *
                       activation_bytes(config, plan, static_cast<double>(precision.compute_bytes));
  return memory;
}

std::string describe(const Memory& memory) {
  return concat(human_bytes(memory.total()), " a rank: states ", human_bytes(memory.states), ", gathered ",
                human_bytes(memory.gathered), ", activations ", human_bytes(memory.activations));
}

}  // namespace tessera::plan
