// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sample_file.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {

void check_sample_size(uint64_t bytes, const std::string& where) {
  if (bytes <= kMostSampleBytes) return;
  user_error(
      {.where = "data.sample",
       .problem = concat(where, " has ", human_bytes(static_cast<double>(bytes))),
       .expected = concat("an image file of at most ", human_bytes(static_cast<double>(kMostSampleBytes)))});
}

std::string read_sample_file(const FileSystem& files, const std::filesystem::path& path) {
  const auto file = files.open(path);
  check_sample_size(file->size(), path.string());
  std::string content(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(content)));
  return content;
}

}  // namespace tessera::data
