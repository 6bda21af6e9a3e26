// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/location.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {

std::string with_location(const std::string& message, const std::string& place) {
  const size_t end = std::min({message.find(": expected "), message.find("; "), message.size()});
  return concat(message.substr(0, end), " (", place, ")", message.substr(end));
}

}  // namespace tessera
