// SPDX-License-Identifier: Apache-2.0
// Files of torch.save since version 1.6 (.pth, .pt, .ckpt): a zip archive of a pickle and the storages under
// its tensors. Read as data: no class is imported, no code runs. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/formats/pickle.h"
#include "tessera/formats/zip_directory.h"

namespace tessera::formats {

/// Where the numbers of a tensor lie. Sizes and places are in elements unless they say bytes.
struct TorchTensor {
  std::string dtype;  // safetensors' name
  std::vector<int64_t> shape, strides;
  int64_t offset = 0;    // of the first element within its storage
  uint64_t storage = 0;  // byte of the file where the storage begins

  bool contiguous() const;
  /// Byte of the file where a contiguous tensor begins.
  uint64_t begin() const;
};

class TorchFile {
 public:
  /// Reads directory and pickle, no tensor. Errors: UserError when it is no such file, the pickle has
  /// anything but plain values, OrderedDicts, tensors, sizes, dtypes and Namespaces, or another byte order.
  explicit TorchFile(std::unique_ptr<const ByteSource> file);
  /// Of a local file.
  explicit TorchFile(const std::filesystem::path& path) : TorchFile(local_files().open(path)) {}

  /// What was saved: usually a dict. Tensors are objects that `tensor` understands.
  const PickleValue& root() const { return pickle_.root(); }
  static bool is_tensor(const PickleValue& value);
  /// Errors: UserError when it is none, or lies outside of its storage. `name` is for messages.
  TorchTensor tensor(const PickleValue& value, std::string_view name) const;
  /// Elements of the flattened tensor from `begin` on, as many as `out` has bytes for. One that is not
  /// contiguous is held whole meanwhile, and until the next such tensor.
  void read(const TorchTensor& tensor, int64_t begin, std::span<std::byte> out) const;

  const ByteSource& file() const { return *file_; }

 private:
  void check_start() const;
  const ZipMember& member(const std::string& name) const;
  [[noreturn]] void broken(const std::string& problem, const std::string& expected = "",
                           const std::string& hint = "") const;

  std::unique_ptr<const ByteSource> file_;
  std::string top_;  // the folder of all members, with its '/'
  std::map<std::string, ZipMember> members_;
  Pickle pickle_;
  mutable uint64_t held_from_ = 0;  // byte of the file that the held bytes begin at
  mutable std::vector<std::byte> held_;
};

}  // namespace tessera::formats
