// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/alike_units.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "tessera/planner/likeness.h"

namespace tessera::planner {
namespace {

/// By unit, numbered in the order of the model.
std::vector<size_t> keys_of(const std::vector<std::string>& kinds, int64_t frozen_units) {
  std::vector<std::pair<std::string, bool>> seen;
  std::vector<size_t> keys;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::pair key(kinds[i], static_cast<int64_t>(i) < frozen_units);
    const auto found = std::ranges::find(seen, key);
    keys.push_back(static_cast<size_t>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(key);
  }
  return keys;
}

std::vector<size_t> first_of(const std::vector<size_t>& keys) {
  std::vector<size_t> first;
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == first.size()) first.push_back(i);
  return first;
}

/// With as many units as there are keys, alike one by one; else the model itself.
arch::ModelConfig small_model(const arch::ModelConfig& model, const std::vector<size_t>& first) {
  arch::ModelConfig small = model;
  const auto cut_down = [&](auto& config) {
    if constexpr (requires { config.depth; }) config.depth = std::max<int64_t>(std::ssize(first) - 2, 1);
  };
  std::visit(cut_down, small.of);
  const std::vector<Likeness> all = likenesses(model), few = likenesses(small);
  if (few.size() != first.size()) return model;
  for (size_t key = 0; key < few.size(); ++key)
    if (few[key] != all[first[key]]) return model;
  return small;
}

Profile profile_of(const Profile& profile, const std::vector<size_t>& first) {
  Profile small = profile;
  small.model = small_model(profile.model, first);
  return small;
}

}  // namespace

AlikeUnits::AlikeUnits(const ProfileTables& tables, const plan::CostInputs& inputs)
    : keys_(keys_of(tables.kinds, inputs.frozen_units)),
      first_(first_of(keys_)),
      small_profile_(profile_of(tables.profile, first_)),
      small_tables_(small_profile_),
      inputs_(inputs) {
  if (small_tables_.kinds.size() == keys_.size()) {  // as many units: it is the model itself
    small_ = first_;
    return;
  }
  small_.resize(first_.size());
  std::iota(small_.begin(), small_.end(), size_t{0});
  for (size_t key = 0; key < first_.size(); ++key) small_tables_.kinds[key] = tables.kinds[first_[key]];
  inputs_.frozen_units = std::ranges::count_if(
      first_, [&](size_t unit) { return static_cast<int64_t>(unit) < inputs.frozen_units; });
}

}  // namespace tessera::planner
