// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/new_file.h"

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::cli {

void check_new_file(const char* where, const std::string& output, bool force) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path path = fs::absolute(output);
  if (!path.has_filename() || fs::is_directory(path, ignored) ||
      !fs::is_directory(path.parent_path(), ignored)) {
    user_error({.where = where,
                .problem = concat("--output is ", escape(output)),
                .expected = "the name of a file in a folder that exists"});
  }
  if (!force && fs::exists(path, ignored)) {
    user_error({.where = where,
                .problem = concat("the file ", escape(output), " exists already"),
                .expected = "a new file",
                .hint = "use another --output, or --force to replace it"});
  }
}

}  // namespace tessera::cli
