// SPDX-License-Identifier: Apache-2.0
// The images that a command line names: files, folders and patterns.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

/// The files that `given` names, in its order. A folder stands for the .jpg, .jpeg and .png files in it and
/// in its subfolders, sorted; a pattern (*, ?, [...]) that is no existing file for what it matches. Hidden
/// files are skipped; other files of folders and patterns are counted in one line for `warn`. A file that is
/// named itself is taken as it is, whether it exists or not. Errors: UserError for a folder or a pattern that
/// gives no image.
std::vector<std::string> list_images(const std::vector<std::string>& given,
                                     const std::function<void(const std::string&)>& warn);

}  // namespace tessera::cli
