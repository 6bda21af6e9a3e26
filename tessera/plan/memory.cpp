// The memory formula. docs/memory.md derives every term; the names here are those of that page.
#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

constexpr double kFloatBytes = 4;

struct UnitSize {
  double parameters = 0;    // trained
  double largest = 0;       // of them, in one tensor
  double buffers = 0;       // computed once, in fp32 and in the compute dtype
  double buffer_bytes = 0;  // of what training changes besides: whole on every rank
};

std::map<std::string, UnitSize> unit_sizes(const arch::ModelConfig& config) {
  std::map<std::string, UnitSize> sizes;
  for (const auto& spec : arch::parameters(config)) {
    UnitSize& size = sizes[spec.unit];
    const auto numel = static_cast<double>(spec.numel());
    (spec.buffer ? size.buffers : size.parameters) += numel;
    if (!spec.buffer) size.largest = std::max(size.largest, numel);
  }
  for (const auto& spec : arch::buffers(config)) {
    sizes[spec.unit].buffer_bytes +=
        static_cast<double>(spec.numel()) * (spec.whole_numbers ? 8 : kFloatBytes);
  }
  return sizes;
}

double padded(double parameters, int64_t world) {
  const auto ranks = static_cast<double>(world);
  return std::ceil(parameters / ranks) * ranks;
}

double state_bytes(const UnitSize& size, Level level, int64_t world, double kept) {
  const double all = padded(size.parameters, world), share = all / static_cast<double>(world);
  const double numbers = 2 + kept;  // master weight and gradient
  if (level == Level::kReplicate) return numbers * kFloatBytes * all;
  const bool unreduced = level == Level::kZero1 && world > 1;  // gradients of the step so far
  return numbers * kFloatBytes * share + (unreduced ? kFloatBytes * all : 0);
}

bool is_split(const UnitPlan& unit, const Plan& plan) {
  return plan.world > 1 && unit.level != Level::kReplicate;
}

/// Numbers of a rank's slice.
double slice_of(const UnitSize& size, const UnitPlan& unit, const Plan& plan) {
  const double all = padded(size.parameters, plan.world);
  return unit.level == Level::kReplicate ? all : all / static_cast<double>(plan.world);
}

/// What is held in the compute dtype from the first step to the last.
double kept_bytes(const UnitSize& size, const UnitPlan& unit, const Plan& plan, double compute) {
  const bool narrow = compute < kFloatBytes;
  const bool own_slice = narrow || unit.offload == Offload::kOptimizer;  // else that of the master weights
  return size.buffer_bytes + size.buffers * (kFloatBytes + (narrow ? compute : 0)) +
         (own_slice ? compute * slice_of(size, unit, plan) : 0);
}

/// Slices of an offloaded unit on their way to its gathers and from its reductions.
double staging_bytes(const UnitSize& size, const UnitPlan& unit, const Plan& plan, double compute) {
  if (unit.offload == Offload::kNone || !is_split(unit, plan)) return 0;
  const double gathers = unit.offload == Offload::kAll ? 1 + static_cast<double>(plan.prefetch) : 0;
  return slice_of(size, unit, plan) * (compute * gathers + kFloatBytes);
}

/// How the gradients of a unit travel (mesh::Group::reduce_scatter).
struct Reduction {
  double bytes = 0;    // of its buffers
  bool holds = false;  // what it was started with, besides
};

Reduction reduction(const UnitSize& size, Level level, const Plan& plan, const Precision& precision) {
  if (plan.world == 1) return {};
  const double all = padded(size.parameters, plan.world), share = all / static_cast<double>(plan.world);
  const auto most = static_cast<double>(std::max<int64_t>(kPieceNumbers / plan.world, 1));
  const double width = std::max(std::min(most, share), 1.0), pieces = std::ceil(share / width);
  const double at_once = std::min(pieces, static_cast<double>(kPiecesUnderWay));
  const int64_t given_bytes = level <= Level::kZero1 ? 4 : precision.compute_bytes;
  const bool as_it_lies = pieces <= 1 && given_bytes <= precision.reduce_bytes;
  const double piece =
      width * static_cast<double>(plan.world * std::min(given_bytes, precision.reduce_bytes));
  return {at_once * piece * (as_it_lies ? 1 : 2), as_it_lies || pieces > at_once};
}

/// The pool of shard::BufferPool: for each size, the most buffers in use at once. `trains`: gradients too.
double pool_bytes(const Plan& plan, std::map<std::string, UnitSize>& sizes, const Precision& precision,
                  bool trains) {
  struct Count {
    int64_t kept = 0, gathered_in_turn = 0, collecting = 0;
    bool holds = false;
  };
  std::map<double, Count> by_size;
  for (const auto& unit : plan.units) {
    if (!is_split(unit, plan) && unit.offload != Offload::kAll) continue;
    const UnitSize& size = sizes[unit.name];
    Count& count = by_size[padded(size.parameters, plan.world)];
    ++(unit.level == Level::kZero3 ? count.gathered_in_turn : count.kept);
    if (!trains || unit.level == Level::kZero1 || !is_split(unit, plan)) continue;
    ++count.collecting;
    count.holds = reduction(size, unit.level, plan, precision).holds;
  }
  double numbers = 0;
  for (const auto& [size, count] : by_size) {
    const int64_t gathered = count.kept + std::min(count.gathered_in_turn, 1 + plan.prefetch);
    const int64_t gradients = std::min<int64_t>(count.collecting, count.holds ? 2 : 1);
    numbers += size * static_cast<double>(gathered + gradients);
  }
  return numbers * static_cast<double>(precision.compute_bytes);
}

/// `trains`: with gradients on their way.
double gathered_bytes(const Plan& plan, std::map<std::string, UnitSize>& sizes, const Precision& precision,
                      bool trains) {
  const auto compute = static_cast<double>(precision.compute_bytes);
  double kept = 0, in_reduction = 0, largest = 0, staging = 0;
  for (const auto& unit : plan.units) {
    const UnitSize& size = sizes[unit.name];
    kept += kept_bytes(size, unit, plan, compute);
    staging = std::max(staging, staging_bytes(size, unit, plan, compute));
    if (trains) in_reduction = std::max(in_reduction, reduction(size, unit.level, plan, precision).bytes);
    largest = std::max(largest, size.largest);
  }
  // A parameter's values as the kernels pack them, and its gradient as autograd hands it over.
  const double one_parameter = (trains ? 2 : 1) * compute * largest;
  return kept + pool_bytes(plan, sizes, precision, trains) + staging + in_reduction + one_parameter;
}

/// One image; `c` bytes an element.
double activation_bytes(const arch::ModelConfig& config, const Plan& plan, double c, double batches_ahead) {
  const double pixels =
      static_cast<double>(config.channels() * config.image_size()) * static_cast<double>(config.image_size());
  const arch::Activations model = arch::activations(config, c);
  double kept = kFloatBytes * pixels * (1 + batches_ahead), again = 0;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const arch::UnitActivations& unit = model.units[i];
    kept += plan.units[i].recompute ? unit.input : unit.all;
    if (plan.units[i].recompute) again = std::max(again, unit.again);
  }
  return kept + again + model.working;
}

}  // namespace

Memory predict_memory(const arch::ModelConfig& config, const Plan& plan, const Precision& precision,
                      int64_t batch) {
  check_units("plan.predict_memory", config, plan);
  auto sizes = unit_sizes(config);
  Memory memory;
  memory.program = kProgramGrowth;
  for (const auto& unit : plan.units) {
    memory.states += state_bytes(sizes[unit.name], unit.level, plan.world, precision.kept_numbers);
  }
  memory.gathered = gathered_bytes(plan, sizes, precision, /*trains=*/true);
  memory.activations =
      static_cast<double>(batch) *
      activation_bytes(config, plan, static_cast<double>(precision.compute_bytes), precision.batches_ahead);
  return memory;
}

double answering_bytes(const arch::ModelConfig& config, const Plan& plan, const Precision& precision,
                       int64_t batch) {
  check_units("plan.answering_bytes", config, plan);
  auto sizes = unit_sizes(config);
  const arch::Activations model = arch::activations(config, static_cast<double>(precision.compute_bytes));
  double slices = 0, activations = 0;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    slices += slice_of(sizes[plan.units[i].name], plan.units[i], plan);
    activations = std::max(activations, model.units[i].all);
  }
  return 2 * kFloatBytes * slices + gathered_bytes(plan, sizes, precision, /*trains=*/false) +
         static_cast<double>(batch) * activations;
}

double saved_bytes(const arch::ModelConfig& config, const Plan& plan, double kept_numbers) {
  check_units("plan.saved_bytes", config, plan);
  auto sizes = unit_sizes(config);
  double numbers = 0, buffers = 0;
  for (const auto& unit : plan.units) {
    const double all = padded(sizes[unit.name].parameters, plan.world);
    numbers += unit.level == Level::kReplicate ? all : all / static_cast<double>(plan.world);
    buffers += sizes[unit.name].buffer_bytes;
  }
  return (1 + kept_numbers) * kFloatBytes * numbers + buffers;
}

std::string describe(const Memory& memory) {
  return concat(human_bytes(memory.total()), " a rank: states ", human_bytes(memory.states), ", gathered ",
                human_bytes(memory.gathered), ", activations ", human_bytes(memory.activations), ", program ",
                human_bytes(memory.program));
}

}  // namespace tessera::plan
