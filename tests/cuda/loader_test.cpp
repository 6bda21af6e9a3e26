// SPDX-License-Identifier: Apache-2.0
// Which libraries of CUDA the process holds once the plug-in is open.
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "gpu.h"

namespace tessera::mesh {
namespace {
namespace fs = std::filesystem;

/// The files mapped into this process whose name begins so.
std::set<fs::path> mapped(const std::string& name) {
  std::set<fs::path> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const fs::path file = line.substr(slash);
    if (file.filename().string().starts_with(name)) files.insert(fs::canonical(file));
  }
  return files;
}

// Two of them, one of a toolkit in LD_LIBRARY_PATH beside the torch package's, would each have a state of its
// own.
TEST(CudaLoader, ProcessHoldsOneOfEachLibraryAndItIsTorchs) {
  TESSERA_NEEDS_GPUS(1);
  Dl_info torch{};
  ASSERT_NE(::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &torch), 0);
  const fs::path packages = fs::canonical(torch.dli_fname).parent_path().parent_path().parent_path();
  for (const char* name : {"libcudart.so", "libcublas.so", "libcublasLt.so"}) {
    const std::set<fs::path> files = mapped(name);
    ASSERT_EQ(files.size(), 1) << name;
    EXPECT_TRUE(files.begin()->string().starts_with(packages.string() + "/")) << *files.begin();
  }
  for (const char* name :
       {"libcudnn.so", "libnccl.so", "libcupti.so", "libtorch_cuda.so", "libc10_cuda.so"}) {
    EXPECT_LE(mapped(name).size(), 1) << name;
  }
}

}  // namespace
}  // namespace tessera::mesh
