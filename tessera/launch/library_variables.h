// The record of environment variables that LibTorch's libraries read. Main thread, before other threads
// exist.
#pragma once

#include <string>

namespace tessera::launch {

/// "GOMP_SPINCOUNT=0, OMP_NUM_THREADS=2": those of this process that change speed or results, in the order of
/// their names; "nothing set".
std::string library_variables();

}  // namespace tessera::launch
