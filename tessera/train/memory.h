// This process's memory, from the kernel. Safe from any thread.
#pragma once

#include <cstdint>

namespace tessera::train {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // the highest so far

}  // namespace tessera::train
