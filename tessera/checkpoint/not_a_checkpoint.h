// SPDX-License-Identifier: Apache-2.0
// What people give where a checkpoint belongs. Safe from any thread.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// Errors: UserError where `path` is a regular file; of a file of weights it names the command that makes a
/// checkpoint of it.
void refuse_file(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
