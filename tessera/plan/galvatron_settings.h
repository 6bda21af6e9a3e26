// SPDX-License-Identifier: Apache-2.0
// Galvatron's settings as names and texts. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::plan {

/// Settings by Galvatron's names, each value as text: "8", "1,1,0", "[0]*20+[1]*12", "gpipe".
using GalvatronSettings = std::map<std::string, std::string>;

/// Reads a plan that Galvatron wrote (a JSON object), or assignments NAME=VALUE as in its README and scripts.
/// Line ends, commas and semicolons separate assignments, # begins a comment. true and false become 1 and 0.
/// Errors: UserError with `where` (a path) when the text is neither, or a value is not an integer, a list of
/// integers or a string.
GalvatronSettings read_galvatron(const std::string& text, const std::string& where);

/// The integers of a list in one of Galvatron's forms: "1,1,0", "[1, 1, 0]", "[0]*20+[1]*12". Nothing when
/// the text has none of these forms, or more than 65,536 entries.
std::optional<std::vector<int64_t>> parse_galvatron_list(std::string_view text);

}  // namespace tessera::plan
