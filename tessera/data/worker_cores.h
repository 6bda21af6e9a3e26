// Where the loader's workers run. Pure functions, but for allowed_cores.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::data {

/// Numbers of the cores that this process may run on.
std::vector<int> allowed_cores();

/// Of the cores of one host, shared by `local_world` ranks in equal parts: those of `local_rank`'s part that
/// its `threads` computing threads leave. Empty where they leave none.
std::vector<int> spare_cores(const std::vector<int>& allowed, int64_t local_rank, int64_t local_world,
                             int64_t threads);

}  // namespace tessera::data
