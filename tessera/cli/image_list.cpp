// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/image_list.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/left_out.h"
#include "tessera/data/open_source.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kImages = "cli.images";

/// All files below a folder but hidden ones, sorted by bytes. Links to folders are not entered: they may lead
/// round in a circle.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code failed;
  fs::recursive_directory_iterator entry(folder, failed);
  for (const fs::recursive_directory_iterator end; !failed && entry != end; entry.increment(failed)) {
    std::error_code unknown;
    if (data::is_hidden(entry->path().filename().string())) {
      entry.disable_recursion_pending();
    } else if (!entry->is_directory(unknown)) {
      files.push_back(entry->path().string());
    }
  }
  if (failed) {
    user_error({.where = kImages,
                .problem = concat("cannot read the folder ", folder.string(), ": ", failed.message()),
                .expected = "",
                .hint = ""});
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

}  // namespace

std::vector<std::string> list_images(const std::vector<std::string>& given,
                                     const std::function<void(const std::string&)>& warn) {
  std::vector<std::string> images;
  data::LeftOut left_out;
  const auto take = [&](const std::string& file) {
    if (data::is_image_name(file)) {
      images.push_back(file);
    } else {
      left_out.add(data::ending_of(file), file);
    }
  };
  const auto take_folder = [&](const std::string& folder) {
    for (const std::string& file : files_below(folder)) take(file);
  };
  for (const std::string& name : given) {
    std::error_code unknown;
    const size_t before = images.size();
    const fs::file_type type = fs::status(name, unknown).type();
    if (type == fs::file_type::directory) {
      take_folder(name);
    } else if (type == fs::file_type::not_found && name.find_first_of("*?[") != std::string::npos) {
      for (const std::string& path : matches(name))
        fs::is_directory(path, unknown) ? take_folder(path) : take(path);
    } else {
      images.push_back(name);
    }
    if (images.size() > before) continue;
    user_error({.where = kImages,
                .problem = concat("no image in '", escape(name), "'",
                                  left_out.count() == 0 ? "" : concat(": ", left_out.text())),
                .expected = "files named .jpg, .jpeg or .png",
                .hint = "name files of other endings one by one"});
  }
  if (left_out.count() > 0)
    warn(concat("[", kImages, "] only images named .jpg, .jpeg or .png are predicted: ", left_out.text()));
  return images;
}

}  // namespace tessera::cli
