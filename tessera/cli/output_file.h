// SPDX-License-Identifier: Apache-2.0
// Checks where a command writes its result before it computes.
#pragma once

#include <string>

namespace tessera::cli {

/// `where`: "cli.command", for messages. Errors: UserError that names `option` when `path` is no name of a
/// file in a folder that exists, or, without `force`, when the file exists.
void check_output_file(const char* where, const std::string& path, bool force,
                       const std::string& option = "--output");

}  // namespace tessera::cli
