#include "tessera/train/environment.h"

#include <torch/headeronly/version.h>

#include "tessera/base/error.h"
#include "tessera/base/version.h"
#include "tessera/launch/surroundings.h"

namespace tessera::train {

std::string environment_json(const launch::Ranks& ranks, int64_t threads) {
  const BuildInfo& build = build_info();
  return launch::surroundings_json({{"tessera", concat(build.version, " (", build.commit, ")")},
                                    {"compiler", concat(build.compiler, ", ", build.build_type)},
                                    {"torch", TORCH_VERSION},
                                    {"launcher", ranks.launcher},
                                    {"ranks", std::to_string(ranks.world)},
                                    {"threads", std::to_string(threads)}});
}

}  // namespace tessera::train
