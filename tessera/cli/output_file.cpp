// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::cli {

void check_output_file(const char* where, const std::string& path, bool force, const std::string& option,
                       const std::vector<std::string>& read) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file = path.empty() ? fs::path() : fs::absolute(path);
  if (!file.has_filename() || fs::is_directory(file, ignored) ||
      !fs::is_directory(file.parent_path(), ignored)) {
    user_error({.where = where,
                .problem = concat(option, " is ", path.empty() ? "empty" : escape(path)),
                .expected = "the name of a file in a folder that exists"});
  }
  if (!fs::exists(file, ignored) && ::access(file.parent_path().c_str(), W_OK) != 0) {
    user_error({.where = where,
                .problem = concat(option, " is ", escape(path),
                                  ", whose folder cannot be written: ", std::strerror(errno)),
                .expected = "a folder in which this user may make files"});
  }
  if (!fs::exists(file, ignored)) return;
  for (const std::string& input : read) {
    if (!fs::equivalent(file, input, ignored)) continue;
    user_error({.where = where,
                .problem = concat(option, " is ", escape(path), ", which the command reads"),
                .expected = "another file"});
  }
  if (fs::is_fifo(file, ignored)) {
    user_error({.where = where,
                .problem = concat(option, " is ", escape(path), ", a pipe"),
                .expected = "the name of a file"});
  }
  if (force) return;
  user_error({.where = where,
              .problem = concat("the file ", escape(path), " exists already"),
              .expected = "a new file",
              .hint = concat("use another ", option, ", or --force to replace it")});
}

}  // namespace tessera::cli
