// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/engine.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/launch/find_torch.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

/// Loads a library for all that follow: one that needs a library of this name gets this one, wherever its own
/// search path, or LD_LIBRARY_PATH, leads.
void* load(const fs::path& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    user_error({.where = "cli.torch",
                .problem = concat("cannot load ", library.string(), ": ",
                                  reason != nullptr ? reason : "unknown reason")});
  }
  return handle;
}

}  // namespace

const train::Entry& engine(Waiting waiting) {
  const fs::path prefix = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  const fs::path torch =
      launch::find_torch({prefix, TESSERA_TORCH_VERSION, [](const char* name) { return std::getenv(name); }});
  // Its log tells ordinary failures with stack traces; our errors say the same in a line.
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  if (waiting == Waiting::kSleep && std::getenv("GOMP_SPINCOUNT") == nullptr)
    ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  // Archives of LibTorch have an OpenMP of another name, which libtorch_cpu.so finds by itself.
  if (const fs::path openmp = torch / "lib" / "libgomp.so.1"; fs::exists(openmp)) load(openmp);
  for (const char* library : {"libc10.so", "libtorch_cpu.so"}) load(torch / "lib" / library);
  const fs::path library = prefix / "lib" / "libtessera.so";
  void* handle = load(library);
  using EntryFunction = const train::Entry* (*)();
  const auto entry = reinterpret_cast<EntryFunction>(::dlsym(handle, "tessera_entry"));
  TESSERA_CHECK(entry != nullptr, library.string());
  return *entry();
}

}  // namespace tessera::cli
