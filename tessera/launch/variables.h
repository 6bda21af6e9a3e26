// SPDX-License-Identifier: Apache-2.0
// Environment variables, read with errors that name them. Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::launch {

/// Its value; nothing where it is not set or empty.
std::optional<std::string> variable(const char* name);
/// As an integer of [least, most]. Errors: UserError where it is something else.
std::optional<int64_t> number_variable(const char* name, int64_t least, int64_t most);
/// The same, of a variable that has to be there because `because` is. Errors: UserError.
std::string needed_variable(const char* name, std::string_view because);
int64_t needed_number(const char* name, int64_t least, int64_t most, std::string_view because);

/// A port of 20000-29999 that all ranks of a job compute alike.
uint16_t port_of_job(uint64_t number);

constexpr int64_t kMostRanks = int64_t{1} << 31;

}  // namespace tessera::launch
