// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/variables.h"

#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/words.h"

namespace tessera::launch {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> number_variable(const char* name, int64_t least, int64_t most) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<int64_t>(*text);
  if (!number || *number < least || *number > most) {
    user_error({.where = "launch.environment",
                .problem = concat(name, " is '", escape(*text), "'"),
                .expected = concat("an integer from ", least, " to ", most)});
  }
  return number;
}

std::string needed_variable(const char* name, std::string_view because) {
  const auto text = variable(name);
  if (!text)
    user_error({.where = "launch.environment", .problem = concat(name, " is not set, but ", because, " is")});
  return *text;
}

int64_t needed_number(const char* name, int64_t least, int64_t most, std::string_view because) {
  needed_variable(name, because);
  return *number_variable(name, least, most);
}

uint16_t port_of_job(uint64_t number) { return static_cast<uint16_t>(20000 + number % 10000); }

}  // namespace tessera::launch
