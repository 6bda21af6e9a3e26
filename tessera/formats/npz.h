// SPDX-License-Identifier: Apache-2.0
// NumPy's arrays in files: .npy (one array) and .npz (a zip archive of them). Read as data: arrays of Python
// objects are refused. Source: numpy.lib.format, versions 1.0 to 3.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/formats/zip_directory.h"
#include "tessera/formats/zip_record.h"

namespace tessera::formats {

/// What stands before the numbers of an .npy.
struct NpyHeader {
  std::string dtype;  // safetensors' name; two raw bytes ("V2") are BF16, as JAX writes it
  std::vector<int64_t> shape;
  bool fortran_order = false;
  uint64_t data = 0;  // byte where the numbers begin
};

/// `start`: at least the first kNpyHeaderBytes of the array, or all of it where it is shorter. Errors:
/// UserError `[formats.npy]` that names `where` and what is wrong: another magic, version, byte order or kind
/// of number, a header that is no dict of descr, fortran_order and shape.
NpyHeader parse_npy_header(std::span<const std::byte> start, const std::string& where);
inline constexpr uint64_t kNpyHeaderBytes = 1 << 16;

/// The header of a C-ordered little-endian array. `dtype`: F64, F32, F16, BF16 (written as V2), I64, I32, U8.
std::string npy_header_text(const std::string& dtype, const std::vector<int64_t>& shape);

/// One thread at a time.
class NpzFile {
 public:
  struct Array {
    std::string name;  // without ".npy"
    NpyHeader header;
  };
  /// Reads directory and headers. Stored members are later read in place; deflated ones (np.savez_compressed)
  /// whole, one at a time. Errors: UserError when it is no zip archive, a member is no .npy, or an array is
  /// not as long as its header says.
  explicit NpzFile(std::unique_ptr<const ByteSource> file);
  /// Of a local file.
  explicit NpzFile(const std::filesystem::path& path) : NpzFile(local_files().open(path)) {}

  const std::vector<Array>& arrays() const { return arrays_; }  // by name
  /// Elements of the flattened (row-major) array from `begin` on, as many as `out` has bytes for. An array in
  /// Fortran's order is held whole meanwhile, and until the next such array.
  void read(size_t array, int64_t begin, std::span<std::byte> out) const;

 private:
  void hold(size_t array) const;

  std::unique_ptr<const ByteSource> file_;
  std::vector<Array> arrays_;
  std::vector<ZipMember> members_;
  mutable size_t held_ = SIZE_MAX;  // whose numbers `numbers_` are
  mutable std::string numbers_;
};

/// Streams an .npz of stored members. Nothing larger than a piece is ever held.
class NpzWriter {
 public:
  explicit NpzWriter(const std::filesystem::path& path) : file_(path) {}
  /// Begins the next array, `crc32` being that of all its numbers. Requires: the one before is complete.
  void begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
             uint32_t numbers_crc32);
  void write(std::span<const std::byte> numbers);
  /// Writes the directory, syncs, closes.
  void finish();

 private:
  void put(std::string_view bytes);

  FileWriter file_;
  std::vector<ZipRecord> members_;
  uint64_t written_ = 0, missing_ = 0;
};

}  // namespace tessera::formats
