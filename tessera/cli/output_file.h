// SPDX-License-Identifier: Apache-2.0
// Checks where a command writes its result before it computes.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// `where`: "cli.command", for messages; `read`: files that the command reads. Errors: UserError that names
/// `option` when `path` is no name of a file in a folder that exists and can be written, is a pipe, or is one
/// of `read` even by another name; and, without `force`, when the file exists.
void check_output_file(const char* where, const std::string& path, bool force,
                       const std::string& option = "--output", const std::vector<std::string>& read = {});

}  // namespace tessera::cli
