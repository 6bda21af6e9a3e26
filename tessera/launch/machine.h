// The limits of this process, read from a file system that a test can make up. Private to this room.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::launch {

/// Cores the cgroups of this process allow (rounded up), INT64_MAX without a limit. `root` holds proc/ and
/// sys/.
int64_t cgroup_cores(const std::filesystem::path& root);
/// Bytes that may still be taken: the least of MemAvailable and what each cgroup above this process leaves.
int64_t free_memory(const std::filesystem::path& root);

}  // namespace tessera::launch
