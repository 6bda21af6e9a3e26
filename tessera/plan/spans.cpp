// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/spans.h"

#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/sized_units.h"

namespace tessera::plan {
namespace {

constexpr size_t kRanksNamed = 8, kFirstNamed = 3;

Span span_of(int64_t stride, int64_t size) { return size == 1 ? Span{} : Span{stride, size}; }

/// Distance of neighbours in the data-parallel groups.
int64_t data_parallel_stride(const UnitPlan& unit) { return unit.layout.adjacent ? unit.layout.tensor : 1; }

}  // namespace

int64_t position_in(const Span& span, int64_t rank) { return rank / span.stride % span.size; }

int64_t base_of(const Span& span, int64_t rank) { return rank - position_in(span, rank) * span.stride; }

std::vector<int64_t> ranks_of(const Span& span, int64_t rank) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < span.size; ++i) ranks.push_back(base_of(span, rank) + i * span.stride);
  return ranks;
}

std::string ranks_text(const Span& span, int64_t rank) {
  const std::vector<int64_t> ranks = ranks_of(span, rank);
  std::vector<std::string> names;
  for (const int64_t each : ranks) names.push_back(std::to_string(each));
  if (names.size() > kRanksNamed) {
    const std::string last = names.back();
    names.resize(kFirstNamed);
    names.insert(names.end(), {"...", last});
  }
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(names, ","),
                span.stride > 1 ? concat(" (stride ", span.stride, ")") : "");
}

Span tensor_span(const Plan& plan, const UnitPlan& unit) {
  const int64_t tensor = unit.layout.tensor;
  Span span = span_of(unit.layout.adjacent ? 1 : plan.stage_ranks() / tensor, tensor);
  span.activations = span.size > 1;
  return span;
}

std::vector<Span> tensor_spans(const Plan& plan) {
  std::set<Span> spans;
  for (const UnitPlan& unit : plan.units) {
    if (unit.is_cut()) spans.insert(tensor_span(plan, unit));
  }
  return {spans.begin(), spans.end()};
}

Span data_parallel_span(const Plan& plan, const UnitPlan& unit) {
  return span_of(data_parallel_stride(unit), plan.stage_ranks() / unit.layout.tensor);
}

Span shard_span(const Plan& plan, const UnitPlan& unit) {
  if (unit.level == Level::kReplicate) return {};
  const Span all = data_parallel_span(plan, unit);
  return unit.shard == 0 ? all : span_of(all.stride, unit.shard);
}

Span replicate_span(const Plan& plan, const UnitPlan& unit) {
  const int64_t shards = shard_span(plan, unit).size;
  return span_of(data_parallel_stride(unit) * shards, data_parallel_span(plan, unit).size / shards);
}

Span stage_span(const Plan& plan) { return span_of(1, plan.stage_ranks()); }

std::vector<Span> spans_of(const Plan& plan) {
  std::set<Span> spans;
  for (const UnitPlan& unit : plan.units) {
    spans.insert({tensor_span(plan, unit), shard_span(plan, unit), replicate_span(plan, unit)});
    if (!unit.is_cut()) continue;
    const UnitPlan rows = rows_plan(unit);
    spans.insert({shard_span(plan, rows), replicate_span(plan, rows)});
  }
  if (plan.stages > 1) spans.insert(stage_span(plan));
  spans.erase(Span{});
  return {spans.begin(), spans.end()};
}

std::vector<Link> links_of(const Plan& plan) {
  std::vector<Link> links;
  const int64_t ranks = plan.stage_ranks();
  for (int64_t boundary = 0; boundary + 1 < plan.stages * plan.virtual_stages; ++boundary) {
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t before = boundary % plan.stages * ranks + i,
                    after = (boundary + 1) % plan.stages * ranks + i;
      links.push_back({boundary, true, before, after});
      links.push_back({boundary, false, after, before});
    }
  }
  return links;
}

int64_t stage_of(const Plan& plan, int64_t rank) { return rank / plan.stage_ranks(); }

int64_t stage_of_unit(const Plan& plan, size_t unit) { return virtual_stage_of(plan, unit) % plan.stages; }

std::pair<size_t, size_t> units_of_virtual_stage(const Plan& plan, int64_t virtual_stage) {
  const auto index = static_cast<size_t>(virtual_stage);
  const bool is_last = index + 1 == plan.first_unit.size();
  return {static_cast<size_t>(plan.first_unit[index]),
          is_last ? plan.units.size() : static_cast<size_t>(plan.first_unit[index + 1])};
}

}  // namespace tessera::plan
