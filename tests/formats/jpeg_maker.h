// SPDX-License-Identifier: Apache-2.0
// JPEG files of every kind, and how libjpeg alone decodes them.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

namespace tessera::formats {

using Bytes = std::vector<uint8_t>;

struct JpegKind {
  J_COLOR_SPACE space = JCS_RGB;  // of the pixels; CMYK is stored as YCCK
  bool progressive = false, arithmetic = false, optimised = false;
  int across = 2, down = 2;  // pixels a chroma sample
  unsigned restart_mcus = 0;
  int quality = 98;
  Bytes exif = {};  // the content of an APP1 marker
};

inline int channels_of(J_COLOR_SPACE space) { return space == JCS_GRAYSCALE ? 1 : space == JCS_CMYK ? 4 : 3; }

inline Bytes encode_jpeg(const Bytes& pixels, int width, int height, const JpegKind& kind) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels_of(kind.space);
  info.in_color_space = kind.space;
  jpeg_set_defaults(&info);
  if (kind.space == JCS_CMYK) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, kind.quality, TRUE);
  info.comp_info[0].h_samp_factor = kind.across;
  info.comp_info[0].v_samp_factor = kind.down;
  if (kind.space == JCS_CMYK) {  // black is as fine as luma
    info.comp_info[3].h_samp_factor = kind.across;
    info.comp_info[3].v_samp_factor = kind.down;
  }
  info.restart_interval = kind.restart_mcus;
  info.arith_code = kind.arithmetic ? TRUE : FALSE;
  info.optimize_coding = kind.optimised ? TRUE : FALSE;
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (!kind.exif.empty()) {
    jpeg_write_marker(&info, JPEG_APP0 + 1, kind.exif.data(), static_cast<unsigned>(kind.exif.size()));
  }
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(
        &pixels[size_t{info.next_scanline} * static_cast<size_t>(width * info.input_components)]);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes bytes(out, out + size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return bytes;
}

/// The rows as libjpeg gives them, gray or RGB, with its own Huffman decoder; nothing where it stops.
inline std::optional<Bytes> decode_by_libjpeg(std::span<const uint8_t> bytes) {
  struct Errors {
    jpeg_error_mgr manager;
    std::jmp_buf jump;
  } errors;
  static Bytes pixels;  // not a local that a jump would pass over
  pixels.clear();
  jpeg_decompress_struct info = {};
  info.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = [](j_common_ptr common) {
    std::longjmp(reinterpret_cast<Errors*>(common->err)->jump, 1);
  };
  errors.manager.emit_message = [](j_common_ptr, int) {};
  if (setjmp(errors.jump) != 0) {
    jpeg_destroy_decompress(&info);
    return std::nullopt;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, bytes.data(), bytes.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&info);
  const size_t stride = size_t{info.output_width} * static_cast<size_t>(info.output_components);
  pixels.resize(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);  // to the end marker
  jpeg_destroy_decompress(&info);
  return pixels;
}

}  // namespace tessera::formats
