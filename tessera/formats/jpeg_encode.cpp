// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

#include "tessera/base/error.h"
#include "tessera/formats/jpeg.h"

namespace tessera::formats {
namespace {

// There is nothing in plain pixels that libjpeg could refuse, but memory may run out.
[[noreturn]] void on_encoder_error(j_common_ptr info) {
  char message[JMSG_LENGTH_MAX];
  info->err->format_message(info, message);
  std::fprintf(stderr, "error: [formats.encode_jpeg] %s\n", message);
  std::abort();
}

}  // namespace

std::vector<uint8_t> encode_jpeg(const Image& image, int quality) {
  TESSERA_CHECK(image.width > 0 && image.height > 0 && (image.channels == 1 || image.channels == 3), "",
                image.width, " x ", image.height, " x ", image.channels);
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = on_encoder_error;
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  const size_t stride = static_cast<size_t>(image.width * image.channels);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(image.pixels.data() + info.next_scanline * stride);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<uint8_t> bytes(out, out + size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return bytes;
}

}  // namespace tessera::formats
