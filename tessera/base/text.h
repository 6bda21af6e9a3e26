// SPDX-License-Identifier: Apache-2.0
// Small text tools for messages: nearest name, numbers a person reads. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The candidate with the smallest edit distance to `word`; empty when none is within a third of its length
/// + 1.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// "4.00 GiB", "512 B".
std::string human_bytes(double bytes);
/// "86,567,656".
std::string human_count(int64_t count);
/// "1 h 02 min", "3 min 07 s", "12.3 s".
std::string human_seconds(double seconds);
std::string join(const std::vector<std::string>& words, std::string_view separator);
/// `text` as the inside of a JSON or TOML basic string (quotes, backslashes and control characters escaped).
std::string escape(std::string_view text);
/// `text` as a field of a CSV file (RFC 4180): in quotes where it holds a comma, a quote or a line end.
std::string csv_field(std::string_view text);

}  // namespace tessera
