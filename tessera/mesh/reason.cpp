// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/reason.h"

#include <regex>

namespace tessera::mesh {

std::string plain_reason(const std::exception& error) {
  static const std::regex place(R"(\[(enforce fail at )?[^\[\] ]+\.(cc|cpp|h|hpp):\d+\][:,]? ?)");
  const std::string text = error.what();
  return std::regex_replace(text.substr(0, text.find('\n')), place, "");
}

}  // namespace tessera::mesh
