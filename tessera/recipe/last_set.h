// SPDX-License-Identifier: Apache-2.0
// What --set says of one key, where that is needed before a recipe is read. Pure, safe from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::recipe {

/// The value of the last "KEY=VALUE" in `sets` whose key is `key`, which is the one that counts; it points
/// into `sets`. Nothing: none names the key.
inline std::optional<std::string_view> last_set(const std::vector<std::string>& sets, std::string_view key) {
  for (auto set = sets.rbegin(); set != sets.rend(); ++set) {
    if (set->starts_with(key) && set->size() > key.size() && (*set)[key.size()] == '=')
      return std::string_view(*set).substr(key.size() + 1);
  }
  return std::nullopt;
}

}  // namespace tessera::recipe
