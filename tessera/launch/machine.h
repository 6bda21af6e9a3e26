// SPDX-License-Identifier: Apache-2.0
// The limits of this process, read from a file system that a test can make up. Private to this room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

namespace tessera::launch {

/// Cores the cgroups of this process allow (rounded up), INT64_MAX without a limit. `root` holds proc/ and
/// sys/.
int64_t cgroup_cores(const std::filesystem::path& root);
/// Seconds so far in which these CPUs were not idle, those included that a virtual machine's host took, of
/// proc/stat. 0 where there is no such file.
double busy_cpu_seconds(const std::filesystem::path& root, const std::set<int>& cpus);
/// Bytes that may still be taken: the least of MemAvailable and what each cgroup above this process leaves.
int64_t free_memory(const std::filesystem::path& root);

}  // namespace tessera::launch
