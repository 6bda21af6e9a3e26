// SPDX-License-Identifier: Apache-2.0
// Any file is one of numpy.savez or a UserError; an array that is understood can be read from its first to
// its last number, and its header survives being written and read.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/npz.h"
#include "tessera/formats/safetensors_header.h"

namespace formats = tessera::formats;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tessera::TemporaryFolder folder("tessera-fuzz");
  const auto path = folder.path() / "x.npz";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const formats::NpzFile file(path);
    for (size_t i = 0; i < file.arrays().size(); ++i) {
      const auto& header = file.arrays()[i].header;
      const int64_t count = formats::element_count(header.shape).value();
      std::array<std::byte, 16> number{};
      const auto one = std::span(number).first(formats::dtype_size(header.dtype));
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        if (at >= 0 && at < count) file.read(i, at, one);
      }
      const std::string text = formats::npy_header_text(header.dtype, header.shape);
      const auto again = formats::parse_npy_header(std::as_bytes(std::span(text)), "again");
      if (again.shape != header.shape || again.dtype != header.dtype) std::abort();
    }
  } catch (const tessera::UserError&) {
  }
  return 0;
}
