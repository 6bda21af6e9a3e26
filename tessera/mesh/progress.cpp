// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/progress.h"

#include <exception>

namespace tessera::mesh {
namespace {

constexpr const char* kKey = "progress";

}  // namespace

void Progress::note() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < interval_) return;
  told_ = now;
  try {
    store_->add(kKey, 1);
  } catch (const std::exception&) {
    // The store is gone: the next collective finds out, and says so.
  }
}

bool Progress::has_been_made() {
  const std::lock_guard lock(mutex_);
  try {
    const int64_t count = store_->add(kKey, 0);
    return std::exchange(seen_, count) != count;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace tessera::mesh
