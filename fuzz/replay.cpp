// SPDX-License-Identifier: Apache-2.0
// Feeds every file of the given folders to a fuzz target, and every beginning of it that is a power of two
// long: what a fuzzer found once is tested always, without clang.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "tessera/base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // the last line names the file that crashed
    const std::string bytes = tessera::read_file(path);
    for (size_t size = 0; size < bytes.size(); size = size == 0 ? 1 : 2 * size) {
      const std::vector<uint8_t> beginning(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      LLVMFuzzerTestOneInput(beginning.data(), beginning.size());
    }
    const std::vector<uint8_t> whole(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(whole.data(), whole.size());
  }
  if (files.empty()) std::fprintf(stderr, "no files to replay\n");
  return files.empty() ? 1 : 0;
}
