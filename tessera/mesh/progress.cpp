// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/progress.h"

#include <exception>

namespace tessera::mesh {
namespace {

constexpr const char* kKey = "count";

}  // namespace

void Progress::note() {
  using Clock = std::chrono::steady_clock;
  auto told = told_.load();
  const auto now = Clock::now().time_since_epoch();
  if (told != 0 && now - Clock::duration(told) < interval_) return;
  if (!told_.compare_exchange_strong(told, now.count())) return;  // another thread does
  try {
    ++own_;
    store_->add(kKey, 1);
  } catch (const std::exception&) {
    // The store is gone: the next collective finds out, and says so.
  }
}

int64_t Progress::of_others() {
  try {
    return store_->add(kKey, 0) - own_;
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace tessera::mesh
