// SPDX-License-Identifier: Apache-2.0
// Members of tar archives made by tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace tessera::data {

/// The header of a regular file; `name` has at most 100 bytes.
inline std::string tar_header(const std::string& name, uint64_t size) {
  std::string header(512, '\0');
  char text[24];
  std::snprintf(text, sizeof text, "%011llo", static_cast<unsigned long long>(size));
  header.replace(0, name.size(), name).replace(124, 11, text).replace(148, 8, "        ");
  header[156] = '0';
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<uint8_t>(c);
  std::snprintf(text, sizeof text, "%06o", sum);
  return header.replace(148, 7, text, 7);
}

/// Header, content and padding.
inline std::string tar_member(const std::string& name, const std::string& content) {
  return tar_header(name, content.size()) + content + std::string((512 - content.size() % 512) % 512, '\0');
}

}  // namespace tessera::data
