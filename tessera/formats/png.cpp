// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/png.h"

#include <png.h>

#include <cstdio>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/formats/exif.h"

namespace tessera::formats {
namespace {

constexpr int kChunkName = 5;  // bytes of a name in libpng's lists: four letters and a zero

/// One decoding. Each function that calls libpng sets the jump target anew and holds no local with a
/// destructor, so that a jump out of libpng skips none.
class Decoding {
 public:
  explicit Decoding(std::span<const uint8_t> bytes) : bytes_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    TESSERA_CHECK(info_ != nullptr, "libpng cannot start");
  }
  ~Decoding() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, on_read);
    // Sizes are judged by pixels, with a message of our own; unknown chunks are never stored, and chunks that
    // may be large and are of no use here neither: a few bytes of zTXt unpack to megabytes, any number of
    // times.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    static constexpr png_byte kUnused[] = "iCCP\0iTXt\0pCAL\0sCAL\0sPLT\0tEXt\0zTXt";
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kUnused, sizeof kUnused / kChunkName);
    png_read_info(png_, info_);
    return true;
  }

  /// To 8-bit gray or RGB.
  bool convert() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    const int type = png_get_color_type(png_, info_);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  /// Interlaced images: the whole, row after row.
  bool read_whole(uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    const size_t stride = row_bytes(), rows = png_get_image_height(png_, info_);
    for (int pass = 0; pass < passes_; ++pass) {
      for (size_t y = 0; y < rows; ++y) png_read_row(png_, pixels + y * stride, nullptr);
    }
    return true;
  }

  bool read_row(uint8_t* row) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_row(png_, row, nullptr);
    return true;
  }

  int exif_orientation() {
    png_uint_32 size = 0;
    png_bytep tiff = nullptr;
    if (png_get_eXIf_1(png_, info_, &size, &tiff) == 0) return 1;
    return formats::exif_orientation({tiff, size});
  }

  bool interlaced() const { return passes_ > 1; }
  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t channels() const { return png_get_channels(png_, info_); }
  const char* message() const { return message_; }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<Decoding*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof self->message_, "%s", message);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<Decoding*>(png_get_io_ptr(png));
    if (count > self->bytes_.size()) png_error(png, "the data end before the last pixel");
    std::memcpy(out, self->bytes_.data(), count);
    self->bytes_ = self->bytes_.subspan(count);
  }

  std::span<const uint8_t> bytes_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
  char message_[128] = {};
};

class PngReader : public ImageReader {
 public:
  PngReader(std::span<const uint8_t> bytes, const std::string& name, const OpenOptions& options)
      : name_(name), decoding_(bytes) {
    if (!decoding_.read_header()) refuse();
    header_.width = decoding_.width();
    header_.height = decoding_.height();
    check_pixels("formats.decode_png", header_.width, header_.height, name, options.max_pixels);
    if (!decoding_.convert()) refuse();
    header_.channels = decoding_.channels();
    TESSERA_CHECK(header_.channels == 1 || header_.channels == 3, "channels ", header_.channels);
    if (options.read_orientation) header_.orientation = decoding_.exif_orientation();
  }

  void start(const Box& part, int64_t shrink) override {
    TESSERA_CHECK_EQ(shrink, 1);
    part_ = part;
    stride_ = decoding_.row_bytes();
    const int64_t rows = decoding_.interlaced() ? header_.height : 1;
    rows_.resize(stride_ * static_cast<size_t>(rows) + kRowPadding);
    if (decoding_.interlaced()) {
      if (!decoding_.read_whole(rows_.data())) refuse();
      return;
    }
    for (int64_t y = 0; y < part.y; ++y) {
      if (!decoding_.read_row(rows_.data())) refuse();
    }
  }

  const uint8_t* next_row() override {
    const uint8_t* row = rows_.data() + part_.x * header_.channels;
    if (decoding_.interlaced()) {
      row += static_cast<size_t>(part_.y++) * stride_;
    } else if (!decoding_.read_row(rows_.data())) {
      refuse();
    }
    return row;
  }

 private:
  [[noreturn]] void refuse() const {
    user_error({.where = "formats.decode_png",
                .problem = concat("cannot decode the PNG image ", name_, ": ", decoding_.message())});
  }

  const std::string name_;
  Decoding decoding_;
  Box part_;
  size_t stride_ = 0;
  std::vector<uint8_t> rows_;  // one, or all of an interlaced image
};

}  // namespace

std::unique_ptr<ImageReader> open_png(std::span<const uint8_t> bytes, const std::string& name,
                                      const OpenOptions& options) {
  return std::make_unique<PngReader>(bytes, name, options);
}

std::vector<uint8_t> encode_png(const uint8_t* pixels, int64_t width, int64_t height, int64_t channels) {
  TESSERA_CHECK(width > 0 && height > 0 && (channels == 1 || channels == 3 || channels == 4), "", width,
                " x ", height, " x ", channels);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<uint32_t>(width);
  image.height = static_cast<uint32_t>(height);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<uint8_t> out(size);
  const int written = png_image_write_to_memory(&image, out.data(), &size, 0, pixels, 0, nullptr);
  TESSERA_CHECK(written != 0, "", image.message);
  out.resize(size);
  return out;
}

}  // namespace tessera::formats
