// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/entry.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Logging.h>
#include <dlfcn.h>
#include <torch/version.h>

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
  namespace train = tessera::train;
  static const train::Entry entry = {train::train,        train::eval,
                                     train::predict,      train::bench_shard,
                                     train::bench_step,   train::compare_layouts_command,
                                     train::plan_profile, train::plan_profile_hosts,
                                     train::logits,       train::measure_for_checkup,
                                     train::torch_info};
  return &entry;
}
