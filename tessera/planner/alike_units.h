// SPDX-License-Identifier: Apache-2.0
// Units of a model that are alike, so that each kind is looked at once. Private to this room.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/cost_inputs.h"
#include "tessera/planner/lookup.h"

namespace tessera::planner {

/// Units are alike if they are of one kind (unit_kinds()) and both or neither are trained. Keys number them
/// from 0 in the order of the model. A small model has few units but one of each key: where the depth of a
/// model is a number of equal blocks it is cut down; else it is the model itself.
class AlikeUnits {
 public:
  AlikeUnits(const ProfileTables& tables, const plan::CostInputs& inputs);
  AlikeUnits(const AlikeUnits&) = delete;
  AlikeUnits& operator=(const AlikeUnits&) = delete;

  /// By unit of the model.
  const std::vector<size_t>& keys() const { return keys_; }
  /// By key: the first unit of the model.
  const std::vector<size_t>& first() const { return first_; }
  /// Of the stem or the head.
  bool is_end(size_t key) const { return key == keys_.front() || key == keys_.back(); }
  /// Of the small model, and by key the unit of it.
  const ProfileTables& tables() const { return small_tables_; }
  const plan::CostInputs& inputs() const { return inputs_; }
  const std::vector<size_t>& small() const { return small_; }

 private:
  std::vector<size_t> keys_, first_, small_;
  Profile small_profile_;
  ProfileTables small_tables_;
  plan::CostInputs inputs_;
};

}  // namespace tessera::planner
