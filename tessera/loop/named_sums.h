// SPDX-License-Identifier: Apache-2.0
// Sums over ranks that need not hold the same tensors: values are matched by name, never by position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/loop/world.h"

namespace tessera::loop {

/// What one rank counted of one tensor.
struct NamedSums {
  int64_t order = 0;  // position in the model, the same on every rank: the result is in this order
  std::string kind, name;
  std::vector<double> sums;  // as many for every tensor and rank
  double largest = 0;        // at least 0
};

/// Of every tensor that some rank holds: the sums over the ranks, added in rank order, and the largest of
/// all. The same on every rank. Two short collectives.
std::vector<NamedSums> sum_by_name(World& world, const std::vector<NamedSums>& mine, const std::string& what);

/// A tensor and its position in the model.
struct OrderedName {
  int64_t order = 0;
  std::string name;
};

/// The first of the names that ranks give, by their order in the model; "" where none gives one. `mine`:
/// empty where this rank has none. The same on every rank. Collective.
std::string first_by_order(World& world, const OrderedName& mine, const std::string& what);

}  // namespace tessera::loop
