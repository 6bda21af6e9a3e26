// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/safetensors_header.h"
#include "tessera/formats/strides.h"

namespace tessera::formats {
namespace {

constexpr std::string_view kSuffix = ".npy";

uint64_t bytes_of(const NpyHeader& header) {
  return static_cast<uint64_t>(*element_count(header.shape)) * dtype_size(header.dtype);
}

}  // namespace

NpzFile::NpzFile(std::unique_ptr<const ByteSource> file) : file_(std::move(file)) {
  std::vector<std::byte> start(std::min<uint64_t>(file_->size(), 4));
  file_->read(0, start);
  if (!looks_like_zip(start)) {
    user_error(
        {.where = "formats.npz",
         .problem = concat(file_->path().string(),
                           " is not a file of numpy.savez (a zip archive): it begins with other bytes")});
  }
  members_ = read_zip_directory(*file_);
  std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 0; i < members_.size(); ++i) {
    const ZipMember& member = members_[i];
    const std::string where = concat(escape(member.name), " in ", file_->path().string());
    if (!member.name.ends_with(kSuffix)) {
      user_error({.where = "formats.npz",
                  .problem = concat(where, " is not an array"),
                  .expected = "members named .npy"});
    }
    Array array{member.name.substr(0, member.name.size() - kSuffix.size()), {}};
    if (member.method == kZipStored) {
      std::vector<std::byte> bytes(std::min(member.size, kNpyHeaderBytes));
      const uint64_t begin = stored_member_offset(*file_, member);
      file_->read(begin, bytes);
      array.header = parse_npy_header(bytes, where);
    } else {
      hold(i);
      array.header = parse_npy_header(std::as_bytes(std::span(numbers_)), where);
    }
    if (member.size - array.header.data != bytes_of(array.header)) {
      user_error(
          {.where = "formats.npz",
           .problem = concat("the array has ", member.size - array.header.data, " bytes (", where, ')'),
           .expected = concat(bytes_of(array.header), ", as its shape says")});
    }
    array.header.data += member.method == kZipStored ? stored_member_offset(*file_, member) : 0;
    arrays_.push_back(std::move(array));
  }
  held_ = SIZE_MAX;
  numbers_ = {};
}

void NpzFile::hold(size_t array) const {
  if (held_ == array) return;
  const ZipMember& member = members_[array];
  if (member.method == kZipStored) {
    const NpyHeader& header = arrays_[array].header;
    numbers_.resize(bytes_of(header));
    file_->read(header.data, std::as_writable_bytes(std::span(numbers_)));
  } else {
    numbers_ = read_zip_member(*file_, member);
  }
  held_ = array;
}

void NpzFile::read(size_t array, int64_t begin, std::span<std::byte> out) const {
  const NpyHeader& header = arrays_.at(array).header;
  const uint64_t size = dtype_size(header.dtype), first = static_cast<uint64_t>(begin) * size;
  TESSERA_CHECK(begin >= 0 && first <= bytes_of(header) && out.size() <= bytes_of(header) - first, begin);
  const bool stored = members_[array].method == kZipStored;
  if (stored && !header.fortran_order) {
    file_->read(header.data + first, out);
    return;
  }
  hold(array);
  const auto held = std::as_bytes(std::span(numbers_)).subspan(stored ? 0 : header.data);
  if (header.fortran_order) {
    gather(held, {header.shape, column_major(header.shape), size}, begin, out);
  } else if (!out.empty()) {
    std::memcpy(out.data(), held.data() + first, out.size());
  }
}

void NpzWriter::put(std::string_view bytes) {
  file_.write(std::as_bytes(std::span(bytes)));
  written_ += bytes.size();
}

void NpzWriter::begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                      uint32_t numbers_crc32) {
  TESSERA_CHECK_EQ(missing_, uint64_t{0});
  const std::string header = npy_header_text(dtype, shape);
  missing_ = static_cast<uint64_t>(*element_count(shape)) * dtype_size(dtype);
  const auto start = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
  const auto crc = crc32_combine(start, numbers_crc32, static_cast<z_off_t>(missing_));
  members_.push_back(
      {name + std::string(kSuffix), static_cast<uint32_t>(crc), header.size() + missing_, written_});
  put(zip_local_header(members_.back()));
  put(header);
}

void NpzWriter::write(std::span<const std::byte> numbers) {
  TESSERA_CHECK(numbers.size() <= missing_, numbers.size(), " of ", missing_);
  file_.write(numbers);
  written_ += numbers.size();
  missing_ -= numbers.size();
}

void NpzWriter::finish() {
  TESSERA_CHECK_EQ(missing_, uint64_t{0});
  const uint64_t directory = written_;
  for (const ZipRecord& member : members_) put(zip_directory_entry(member));
  put(zip_directory_end(directory, written_ - directory, members_.size()));
  file_.finish();
}

}  // namespace tessera::formats
