// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/tensor_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/plan/spans.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kFirstRoom = 64;  // samples of a first message

/// Ranks that share memory copy by themselves: nothing goes on beside their products.
int64_t pieces_for(const mesh::Group& ranks, int64_t asked) {
  constexpr int64_t kOverNetwork = 4;
  return asked > 0 ? asked : ranks.transport_name() == "shared memory" ? 1 : kOverNetwork;
}

}  // namespace

at::Tensor TensorGroup::gather_again(const at::Tensor& rows, const GroupSamples& samples,
                                     const std::string& what) const {
  return ranks_.gather_rows(rows, samples.counts, what + ", again").wait();
}

TensorGroups::TensorGroups(const plan::Plan& plan, mesh::Mesh& mesh, int64_t pieces) {
  std::map<plan::Span, size_t> indices;
  for (const plan::UnitPlan& unit : plan.units) {
    if (!unit.is_cut()) continue;
    const auto [index, is_new] = indices.emplace(plan::tensor_span(plan, unit), members_.size());
    if (is_new) members_.push_back({&mesh.group(index->first), kFirstRoom});
    // What runs again gathers in backward anyway, right before it is needed.
    by_unit_.emplace(unit.name, TensorGroup(*members_[index->second].ranks, index->second,
                                            unit.keep_gathered || unit.recomputes(),
                                            pieces_for(*members_[index->second].ranks, pieces)));
  }
}

TensorGroups::~TensorGroups() = default;

const TensorGroup* TensorGroups::of(const std::string& unit) const {
  const auto found = by_unit_.find(unit);
  return found == by_unit_.end() ? nullptr : &found->second;
}

std::vector<GroupSamples> TensorGroups::exchange(std::span<const uint64_t> mine) {
  std::vector<GroupSamples> all;
  for (Member& member : members_) all.push_back(exchange(member, mine));
  return all;
}

// A message is a count and room for so many samples. Where one rank has more, every rank sees its count, and
// all send again with more room, which later messages keep.
GroupSamples TensorGroups::exchange(Member& member, std::span<const uint64_t> mine) {
  const auto ranks = member.ranks->size(), count = static_cast<int64_t>(mine.size());
  for (;;) {
    const int64_t length = 1 + member.room;
    at::Tensor message = at::zeros({length}, at::kLong), all = at::empty({ranks, length}, at::kLong);
    auto* numbers = message.mutable_data_ptr<int64_t>();
    numbers[0] = count;
    const auto fitting = std::min(count, member.room);
    std::copy_n(mine.begin(), fitting, reinterpret_cast<uint64_t*>(numbers) + 1);
    member.ranks->all_gather(all.view({-1}), message, "samples of the micro-batch").wait();
    GroupSamples samples;
    const auto* received = all.const_data_ptr<int64_t>();
    for (int64_t rank = 0; rank < ranks; ++rank) samples.counts.push_back(received[rank * length]);
    const int64_t most = std::ranges::max(samples.counts);
    if (most <= member.room) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto* first = reinterpret_cast<const uint64_t*>(received) + rank * length + 1;
        samples.numbers.insert(samples.numbers.end(), first, first + samples.counts[rank]);
      }
      return samples;
    }
    member.room = 2 * most;
  }
}

}  // namespace tessera::parallel
