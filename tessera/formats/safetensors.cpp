// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/safetensors.h"

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::formats {

SafetensorsReader::SafetensorsReader(std::unique_ptr<const ByteSource> file) : file_(std::move(file)) {
  auto header = read_safetensors_header(*file_);
  buffer_start_ = header.buffer_start;
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const SafetensorsEntry* SafetensorsReader::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

void SafetensorsReader::read(const SafetensorsEntry& entry, uint64_t first, std::span<std::byte> out) const {
  const uint64_t size = entry.end - entry.begin;
  TESSERA_CHECK(first <= size && out.size() <= size - first, "tensor ", entry.name, ": bytes from ", first,
                ", ", out.size(), " of ", size);
  file_->read(buffer_start_ + entry.begin + first, out);
}

struct SafetensorsWriter::State {
  FileWriter file;
  Checksum checksum;
  uint64_t missing = 0;  // bytes of the buffer still to come

  void put(std::span<const std::byte> bytes) {
    checksum.update(bytes);
    file.write(bytes);
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header_text(entries, metadata);
  state_.reset(new State{.file = FileWriter(std::move(path)), .checksum = {}});
  state_->missing = entries.empty() ? 0 : entries.back().end;
  state_->put(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TESSERA_CHECK(bytes.size() <= state_->missing, "bytes: ", bytes.size(), ", expected ", state_->missing);
  state_->put(bytes);
  state_->missing -= bytes.size();
}

std::string SafetensorsWriter::finish() {
  TESSERA_CHECK_EQ(state_->missing, uint64_t{0});
  state_->file.finish();
  return state_->checksum.hex();
}

}  // namespace tessera::formats
