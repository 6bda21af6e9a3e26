// SPDX-License-Identifier: Apache-2.0
// Reading small texts piece by piece. Pure functions.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// The whole text as a decimal number of the type. Nothing: it is something else ("", " 1", "+1", "1x") or
/// does not fit it.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Without blanks (spaces, tabs, line ends) at both ends.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

/// Capital letters of ASCII become small ones; all other bytes stay.
inline std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// What stands before the first of `ends`, or all where there is none; it and that byte leave the text.
inline std::string_view take_until(std::string_view& text, std::string_view ends) {
  const size_t end = std::min(text.find_first_of(ends), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

/// Every `word` in `text` becomes `by`; what is put in is not looked at again. Requires: `word` is not empty.
inline void replace_all(std::string& text, std::string_view word, std::string_view by) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) {
    text.replace(at, word.size(), by);
  }
}

}  // namespace tessera
