// SPDX-License-Identifier: Apache-2.0
// Any file is one of torch.save or a UserError; a tensor that is understood can be read from its first to its
// last number.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/safetensors_header.h"
#include "tessera/formats/torch_file.h"

namespace formats = tessera::formats;

namespace {

void read_tensors(const formats::TorchFile& file, const formats::PickleValue& value, int depth) {
  if (depth == 0) return;
  if (formats::TorchFile::is_tensor(value)) {
    try {
      const auto tensor = file.tensor(value, "fuzz");
      const int64_t count = formats::element_count(tensor.shape).value();
      std::array<std::byte, 16> number{};
      const auto one = std::span(number).first(formats::dtype_size(tensor.dtype));
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        if (at >= 0 && at < count) file.read(tensor, at, one);
      }
    } catch (const tessera::UserError&) {
    }
    return;
  }
  for (const auto* item : value.items) read_tensors(file, *item, depth - 1);
  for (const auto& [key, entry] : value.entries) read_tensors(file, *entry, depth - 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tessera::TemporaryFolder folder("tessera-fuzz");
  const auto path = folder.path() / "x.pth";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const formats::TorchFile file(path);
    read_tensors(file, file.root(), 5);
  } catch (const tessera::UserError&) {
  }
  return 0;
}
