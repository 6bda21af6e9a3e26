// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/index_builder.h"

#include <algorithm>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/data/index_layout.h"

namespace tessera::data {
namespace {

void append_number(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_section(std::string& out, std::string_view bytes) {
  append_number(out, bytes.size());
  out += bytes;
  out.resize((out.size() + kIndexAlignment - 1) / kIndexAlignment * kIndexAlignment);
}

template <typename Number>
void append_column(std::string& out, const std::vector<Number>& column) {
  append_section(out, {reinterpret_cast<const char*>(column.data()), column.size() * sizeof(Number)});
}

/// A column of nothing but zeros is not written: most kinds of source leave some.
template <typename Number>
void append_optional_column(std::string& out, const std::vector<Number>& column) {
  const bool zeros = std::all_of(column.begin(), column.end(), [](Number value) { return value == 0; });
  append_column(out, zeros ? std::vector<Number>() : column);
}

void append_list(std::string& out, const std::vector<std::string>& list) {
  std::string text;
  for (std::string item : list) {
    std::replace(item.begin(), item.end(), '\0', '?');
    text += item;
    text += '\0';
  }
  append_section(out, text);
}

template <typename Item>
void move_to_end(std::vector<Item>& to, std::vector<Item>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void IndexBuilder::add(const IndexedSample& sample) {
  names_ += sample.name;
  name_ends_.push_back(names_.size());
  labels_.push_back(static_cast<int32_t>(sample.label));
  file_numbers_.push_back(sample.file);
  offsets_.push_back(sample.offset);
  sizes_.push_back(sample.size);
  unpacked_.push_back(sample.unpacked);
  crcs_.push_back(sample.crc32);
  methods_.push_back(sample.method);
}

void IndexBuilder::add_broken(const IndexedSample& sample, std::string problem) {
  IndexedSample unlabelled = sample;
  unlabelled.label = -1;
  broken_.push_back(size());
  problems_.push_back(std::move(problem));
  add(unlabelled);
}

void IndexBuilder::add_point(uint32_t file, const formats::RestartPoint& point,
                             std::span<const std::byte> window) {
  points_.push_back({point, windows_.size(), checksum64(window), file, 0});
  windows_.append(reinterpret_cast<const char*>(window.data()), window.size());
}

void IndexBuilder::append(IndexBuilder&& part) {
  for (uint64_t& end : part.name_ends_) end += names_.size();
  for (uint64_t& sample : part.broken_) sample += size();
  for (IndexedPoint& point : part.points_) point.window_at += windows_.size();
  names_ += part.names_;
  windows_ += part.windows_;
  move_to_end(name_ends_, part.name_ends_);
  move_to_end(labels_, part.labels_);
  move_to_end(file_numbers_, part.file_numbers_);
  move_to_end(offsets_, part.offsets_);
  move_to_end(sizes_, part.sizes_);
  move_to_end(unpacked_, part.unpacked_);
  move_to_end(crcs_, part.crcs_);
  move_to_end(methods_, part.methods_);
  move_to_end(broken_, part.broken_);
  move_to_end(problems_, part.problems_);
  move_to_end(notes_, part.notes_);
  move_to_end(points_, part.points_);
}

void IndexBuilder::number_classes() {
  const int32_t largest = labels_.empty() ? -1 : *std::max_element(labels_.begin(), labels_.end());
  classes_.clear();
  for (int32_t label = 0; label <= largest; ++label) classes_.push_back(std::to_string(label));
}

std::string IndexBuilder::finish(const std::string& identity) const {
  std::string body;
  append_section(body, identity);
  append_list(body, files_);
  append_list(body, classes_);
  append_list(body, notes_);
  append_list(body, problems_);
  append_section(body, names_);
  append_column(body, name_ends_);
  append_column(body, labels_);
  append_optional_column(body, file_numbers_);
  append_optional_column(body, offsets_);
  append_optional_column(body, sizes_);
  append_optional_column(body, unpacked_);
  append_optional_column(body, crcs_);
  append_optional_column(body, methods_);
  append_column(body, broken_);
  append_column(body, points_);
  append_number(body, windows_.size());
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(body)));
  std::string out(kIndexMagic);
  out += checksum.hex();
  append_number(out, body.size());
  return out + body;
}

}  // namespace tessera::data
