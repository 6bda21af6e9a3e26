// SPDX-License-Identifier: Apache-2.0
// Checks --output of commands that write one file.
#pragma once

#include <string>

namespace tessera::cli {

/// Errors: UserError in the name of `where`: --output is no name of a file in a folder that exists, or,
/// without `force`, the file exists.
void check_new_file(const char* where, const std::string& output, bool force);

}  // namespace tessera::cli
