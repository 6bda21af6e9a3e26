// SPDX-License-Identifier: Apache-2.0
// Any file unpacks as a stream or gives a UserError; what is unpacked from a restart point is what the stream
// gave.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/gzip_stream.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder("tessera-fuzz");
  const auto path = folder.path() / "x.gz";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const FileReader file(path);
  std::vector<std::pair<formats::RestartPoint, std::vector<std::byte>>> points;
  std::string content;
  try {
    formats::GzipStream stream(file, 64, [&](const auto& point, std::span<const std::byte> window) {
      if (points.size() < 100)
        points.emplace_back(point, std::vector<std::byte>(window.begin(), window.end()));
    });
    content = formats::read_text(stream, 1 << 20);
  } catch (const UserError&) {
    return 0;
  }
  for (const auto& [point, window] : points) {
    std::string bytes(content.size() - std::min<size_t>(point.unpacked, content.size()), '\0');
    formats::read_gzip_at(file, point, window, point.unpacked, std::as_writable_bytes(std::span(bytes)));
    TESSERA_CHECK(bytes.empty() || bytes == content.substr(point.unpacked));
  }
  return 0;
}
