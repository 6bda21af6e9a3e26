// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/engine.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

/// A LibTorch in LD_LIBRARY_PATH would win over the one this program was built with.
void check_no_other_torch() {
  const char* search = std::getenv("LD_LIBRARY_PATH");
  if (search == nullptr) return;
  std::error_code ignored;
  const fs::path expected =
      fs::weakly_canonical(fs::path(TESSERA_TORCH_LIB_DIR) / "libtorch_cpu.so", ignored);
  std::stringstream folders(search);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / "libtorch_cpu.so";
    if (!fs::exists(candidate, ignored)) continue;
    if (fs::weakly_canonical(candidate, ignored) == expected) return;
    user_error("cli.torch", "the LibTorch this program was built with, ", expected.string(),
               ": LD_LIBRARY_PATH puts ", candidate.string(),
               " first (unset LD_LIBRARY_PATH or remove that folder from it)");
  }
}

}  // namespace

const train::Entry& engine() {
  check_no_other_torch();
  // Its log tells ordinary failures with stack traces; our errors say the same in a line.
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  const fs::path library =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / "libtessera.so";
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    user_error("cli.torch", "a libtessera.so that loads: ", reason != nullptr ? reason : library.string(),
               " (built against ", TESSERA_TORCH_LIB_DIR, "; build again with ./dev build)");
  }
  using EntryFunction = const train::Entry* (*)();
  const auto entry = reinterpret_cast<EntryFunction>(::dlsym(handle, "tessera_entry"));
  TESSERA_CHECK(entry != nullptr, library.string());
  return *entry();
}

}  // namespace tessera::cli
