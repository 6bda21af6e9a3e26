// SPDX-License-Identifier: Apache-2.0
// 64-bit checksums of files on disk (XXH3). Pure; a Checksum object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera {

/// Checksum of bytes that arrive in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void update(std::span<const std::byte> bytes);
  /// 16 hexadecimal digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of lines of text.
class TextChecksum {
 public:
  void add(const std::string& text) {
    checksum_.update(std::as_bytes(std::span(text)));
    checksum_.update(std::as_bytes(std::span("\n", 1)));
  }
  std::string hex() const { return checksum_.hex(); }

 private:
  Checksum checksum_;
};

}  // namespace tessera
