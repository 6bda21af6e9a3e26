// SPDX-License-Identifier: Apache-2.0
// JSON as text that any reader takes. Pure.
#pragma once

#include <string>

namespace tessera {

/// What is no UTF-8 (names of files are bytes) becomes the replacement character. `indent` as nlohmann's
/// dump: -1 for one line.
template <typename Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera
