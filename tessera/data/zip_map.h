// SPDX-License-Identifier: Apache-2.0
// The list of a zipped ImageNet: train_map.txt, val_map.txt. Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace tessera::data {

/// A line "name<TAB>label"; blanks instead of the tab are taken too, where the name may have none at its end.
struct MapLine {
  std::string_view name, label;  // label: "" where the line has only a name
  int64_t number = 0;            // from 1
};

/// Calls `visit` with each line that is not empty.
void read_map(std::string_view text, const std::function<void(const MapLine&)>& visit);

}  // namespace tessera::data
