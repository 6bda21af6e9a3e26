// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/one_line.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

/// Bytes of the UTF-8 character at the beginning; 0: there is none, or one that a terminal obeys (C1).
size_t character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) < ' ' || byte(0) == 0x7f ? 0 : 1;
  const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || size > text.size()) return 0;
  uint32_t code = byte(0) & (0xffU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool shortest = code >= (size == 4 ? 0x10000U : size == 3 ? 0x800U : 0xa0U);
  return shortest && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? size : 0;
}

std::string written_out(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t size = character(text);
    char code[8] = "\\n";
    if (size == 0 && text[0] != '\n')
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(text[0]));
    line += size > 0 ? text.substr(0, size) : std::string_view(code);
    text.remove_prefix(std::max<size_t>(1, size));
  }
  return line;
}

}  // namespace

std::string one_line(std::string_view text) {
  if (text.size() <= kMostLineBytes) return written_out(text);
  // Where something lies and what to do about it stands at the end.
  constexpr size_t kEnd = kMostLineBytes / 4;
  return concat(written_out(text.substr(0, kMostLineBytes - kEnd)), " ... (",
                human_count(static_cast<int64_t>(text.size() - kMostLineBytes)), " bytes left out) ... ",
                written_out(text.substr(text.size() - kEnd)));
}

}  // namespace tessera
