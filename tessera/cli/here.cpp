// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/error.h"
#include "tessera/base/version.h"
#include "tessera/cli/plan_prediction.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {

Here here() {
  const std::string machine = launch::machine_description(), separator = "; ";
  const size_t system_ends = machine.find(separator);
  const std::string processor =
      system_ends == std::string::npos ? machine : machine.substr(system_ends + separator.size());
  return {.processor = processor,
          .build = concat("tessera ", build_info().version, " (", build_info().commit, "), LibTorch ",
                          TESSERA_TORCH_VERSION),
          .gpus = launch::gpu_names()};
}

}  // namespace tessera::cli
