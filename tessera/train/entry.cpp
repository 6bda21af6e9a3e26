#include "tessera/train/entry.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Logging.h>
#include <dlfcn.h>

#include "tessera/base/error.h"
#include "tessera/train/commands.h"

namespace tessera::train {

std::string torch_info() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info);
  return concat("LibTorch ", TORCH_VERSION, " from ", info.dli_fname ? info.dli_fname : "?", "\n",
                at::show_config(), "\n", at::get_parallel_info());
}

}  // namespace tessera::train

const tessera::train::Entry* tessera_entry() {
  c10::initLogging();  // or else TORCH_CPP_LOG_LEVEL is not read
  static const tessera::train::Entry entry = {tessera::train::train,      tessera::train::eval,
                                              tessera::train::predict,    tessera::train::bench_shard,
                                              tessera::train::bench_step, tessera::train::logits,
                                              tessera::train::torch_info};
  return &entry;
}
