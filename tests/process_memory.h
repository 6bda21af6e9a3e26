// SPDX-License-Identifier: Apache-2.0
// What this process holds of the host's memory, as the kernel counts it.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

namespace tessera::testing {

/// A sanitizer keeps what is given back and a shadow of the rest: how much is held says nothing then.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Bytes of a line of /proc/self/status ("VmRSS": held now, "VmHWM": held at most); -1 where there is none.
inline int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ':')) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

/// The most begins anew from what is held now. False where the kernel refuses.
inline bool forget_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5";
  clear.flush();
  return clear.good() && status_bytes("VmHWM") < status_bytes("VmRSS") + (1 << 20);
}

/// How far the memory held rose while `work` ran.
inline int64_t peak_above_idle(const std::function<void()>& work) {
  forget_peak();
  const int64_t idle = status_bytes("VmRSS");
  work();
  return status_bytes("VmHWM") - idle;
}

}  // namespace tessera::testing
