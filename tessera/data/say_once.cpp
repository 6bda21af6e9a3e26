// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/say_once.h"

#include <memory>
#include <mutex>
#include <span>
#include <unordered_set>
#include <utility>

#include "tessera/data/index_layout.h"

namespace tessera::data {

std::function<void(const std::string&)> say_once(std::function<void(const std::string&)> say) {
  struct Said {
    std::mutex mutex;
    std::unordered_set<uint64_t> lines;
  };
  return [said = std::make_shared<Said>(), say = std::move(say)](const std::string& line) {
    const std::lock_guard lock(said->mutex);
    if (said->lines.insert(checksum64(std::as_bytes(std::span(line)))).second) say(line);
  };
}

}  // namespace tessera::data
