// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/named_sums.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::loop {
namespace {

using Key = std::tuple<int64_t, std::string, std::string>;  // order, kind, name

}  // namespace

std::vector<NamedSums> sum_by_name(World& world, const std::vector<NamedSums>& mine,
                                   const std::string& what) {
  nlohmann::json names = nlohmann::json::array();
  for (const NamedSums& one : mine) names.push_back({one.order, one.kind, one.name, one.sums.size()});
  std::map<Key, size_t> index;  // of all ranks' tensors, in the model's order
  size_t values = 0;            // of each
  for (const std::string& text : world.gather(names.dump(), what)) {
    for (const auto& name : nlohmann::json::parse(text)) {
      index.emplace(
          Key{name.at(0).get<int64_t>(), name.at(1).get<std::string>(), name.at(2).get<std::string>()}, 0);
      values = name.at(3).get<size_t>();
    }
  }
  size_t next = 0;
  for (auto& [key, place] : index) place = next++;
  // A row holds the sums, to which all ranks add, and then one value a rank, where only that rank writes its
  // largest.
  const size_t rows = index.size(), ranks = static_cast<size_t>(world.size());
  std::vector<double> all(rows * (values + ranks));
  for (const NamedSums& one : mine) {
    TESSERA_CHECK_EQ(one.sums.size(), values);
    double* row = &all[index.at({one.order, one.kind, one.name}) * (values + ranks)];
    for (size_t i = 0; i < values; ++i) row[i] += one.sums[i];
    double& largest = row[values + static_cast<size_t>(world.rank())];
    largest = std::max(largest, one.largest);
  }
  world.sum(all, what);
  std::vector<NamedSums> found;
  for (const auto& [key, place] : index) {
    const auto& [order, kind, name] = key;
    const double* row = &all[place * (values + ranks)];
    found.push_back(
        {order, kind, name, {row, row + values}, *std::max_element(row + values, row + values + ranks)});
  }
  return found;
}

std::string first_by_order(World& world, const OrderedName& mine, const std::string& what) {
  const nlohmann::json text =
      mine.name.empty() ? nlohmann::json::array() : nlohmann::json{mine.order, mine.name};
  OrderedName first{std::numeric_limits<int64_t>::max(), ""};
  for (const std::string& other : world.gather(text.dump(), what)) {
    const auto place = nlohmann::json::parse(other);
    if (place.empty() || place.at(0).get<int64_t>() >= first.order) continue;
    first = {place.at(0).get<int64_t>(), place.at(1).get<std::string>()};
  }
  return first.name;
}

}  // namespace tessera::loop
