// SPDX-License-Identifier: Apache-2.0
// Elements of an SVG picture as text; lengths are in pixels. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"

namespace tessera::monitor::svg {

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

/// "12.5", with two decimals at most.
inline std::string length(double value) {
  std::string text = print("%.2f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

inline std::string attributes(const Box& box) {
  return concat("x=\"", length(box.x), "\" y=\"", length(box.y), "\" width=\"", length(box.width),
                "\" height=\"", length(box.height), '"');
}

/// `style`: a class of the picture's style sheet. `tip`: what a browser shows under the pointer; "": nothing.
inline std::string rect(const Box& box, std::string_view style, std::string_view tip = "") {
  const std::string start = concat("<rect class=\"", style, "\" ", attributes(box));
  return tip.empty() ? start + "/>\n" : concat(start, "><title>", escape_html(tip), "</title></rect>\n");
}

inline std::string text(const Point& at, std::string_view style, std::string_view content) {
  return concat("<text class=\"", style, "\" x=\"", length(at.x), "\" y=\"", length(at.y), "\">",
                escape_html(content), "</text>\n");
}

/// A path such as "M0 0H10".
inline std::string path(std::string_view style, std::string_view data) {
  return concat("<path class=\"", style, "\" d=\"", data, "\"/>\n");
}

/// At most `most` characters of UTF-8, the last one "…" where some are left out.
inline std::string shortened(const std::string& text, size_t most) {
  const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  size_t characters = 0, cut = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!begins_character(text[i])) continue;
    if (characters == most - 1) cut = i;
    if (++characters > most) return text.substr(0, cut) + "…";
  }
  return text;
}

}  // namespace tessera::monitor::svg
