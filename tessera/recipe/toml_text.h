// SPDX-License-Identifier: Apache-2.0
// TOML text to flat keys and values: the only place that knows the TOML library. Private to this room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/recipe/option.h"

namespace tessera::recipe {

/// One "room.key = value".
struct Entry {
  std::string key;
  std::optional<Value> value;  // none: a kind of value no option takes
  std::string found;           // for messages: `string "x"`, `integer 3`, `a table`
  std::string where;           // "quick.toml:12"
};

/// All values of a file. Errors: UserError with file and line.
std::vector<Entry> parse_toml(const std::string& text, const std::string& where);

/// A value alone, as in --set; none when it is no TOML value.
std::optional<Entry> parse_toml_value(const std::string& text);

}  // namespace tessera::recipe
