// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/checksum.h"

#include <xxhash.h>

#include <cstdio>

namespace tessera {

struct Checksum::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->xxh); }
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Checksum::hex() const {
  char buffer[17];
  std::snprintf(buffer, sizeof buffer, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits_digest(state_->xxh)));
  return buffer;
}

}  // namespace tessera
