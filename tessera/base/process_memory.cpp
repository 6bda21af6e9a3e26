// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "tessera/base/trace.h"

namespace tessera {

int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long total = 0, resident = 0;
  const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

int64_t shared_resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0;
  long kilobytes = 0;
  for (char line[256]; std::fgets(line, sizeof line, file) != nullptr;) {
    if (std::sscanf(line, "RssShmem: %ld", &kilobytes) == 1) break;
  }
  std::fclose(file);
  return kilobytes * 1024;
}

int64_t MemoryBefore::peak_growth() const {
  return peak_resident_bytes() - resident - (shared_resident_bytes() - shared);
}

void trace_resident_memory() {
  if (Trace* trace = current_trace())
    trace->counter("resident memory", "MiB", static_cast<double>(resident_bytes()) / (1 << 20));
}

}  // namespace tessera
