// SPDX-License-Identifier: Apache-2.0
// Reads the description of a machine (TOML), such as recipes/machines/a100_80g.toml. Not an installed header.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/planner/assumed_profile.h"

namespace tessera::recipe {

/// All keys must be there; `where` names the file in messages. Errors: UserError of one line that names key,
/// value, file and line, and what is allowed.
planner::Machine parse_machine(const std::string& toml, const std::string& where);

/// parse_machine() of a file. Errors: also a file that cannot be read.
planner::Machine read_machine(const std::filesystem::path& path);

}  // namespace tessera::recipe
