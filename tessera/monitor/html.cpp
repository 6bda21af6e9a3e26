// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/html.h"

#include "tessera/base/error.h"

namespace tessera::monitor {

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        out += (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F ? ' ' : c;
      }
    }
  }
  return out;
}

std::string base64(std::span<const uint8_t> bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = (group << 8) | (j < count ? bytes[i + j] : 0U);
    for (size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[(group >> (18 - 6 * j)) & 63U] : '=';
  }
  return out;
}

std::string section(std::string_view id, std::string_view heading, std::string_view aside,
                    std::string_view body) {
  if (body.empty()) return "";
  return concat("<section id=\"", id, "\">\n<h2>", heading,
                aside.empty() ? "" : concat(" <small>", aside, "</small>"), "</h2>\n", body, "</section>\n");
}

}  // namespace tessera::monitor
