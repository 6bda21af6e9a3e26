#include "tessera/formats/jpeg.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>

// libjpeg's headers need <cstdio> before them.
#include <jerror.h>
#include <jpeglib.h>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr int kMaxScans = 500;  // each scan walks over the whole image: a small file must not cost minutes

struct Failure {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  bool input_ended = false;   // an end marker was made up
  bool data_missing = false;  // pixels had to be made up
  char message[JMSG_LENGTH_MAX] = {};
};

Failure& failure_of(j_common_ptr info) { return *reinterpret_cast<Failure*>(info->err); }

[[noreturn]] void stop(j_common_ptr info, const char* message) {
  Failure& failure = failure_of(info);
  std::snprintf(failure.message, sizeof failure.message, "%s", message);
  std::longjmp(failure.jump, 1);
}

[[noreturn]] void on_error(j_common_ptr info) {
  char message[JMSG_LENGTH_MAX];
  info->err->format_message(info, message);
  stop(info, message);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // trace
  Failure& failure = failure_of(info);
  if (info->err->msg_code == JWRN_JPEG_EOF) failure.input_ended = true;
  if (info->err->msg_code == JWRN_HIT_MARKER) failure.data_missing = true;
}

void on_output(j_common_ptr) {}  // libjpeg prints to stderr otherwise

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) {
    stop(info, "more than 500 scans");
  }
}

/// One decompression. Each function that calls libjpeg sets the jump target anew and holds no local with a
/// destructor, so that a jump out of libjpeg skips none.
class Reader {
 public:
  Reader() {
    info_.err = jpeg_std_error(&failure_.manager);
    failure_.manager.error_exit = on_error;
    failure_.manager.emit_message = on_message;
    failure_.manager.output_message = on_output;
    progress_.progress_monitor = on_progress;
  }
  ~Reader() { jpeg_destroy_decompress(&info_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool read_header(std::span<const uint8_t> bytes) {
    if (setjmp(failure_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    jpeg_read_header(&info_, TRUE);
    if (info_.num_components == 1) {
      info_.out_color_space = JCS_GRAYSCALE;
    } else if (info_.num_components == 3) {
      info_.out_color_space = JCS_RGB;
    } else if (info_.num_components == 4) {
      info_.out_color_space = JCS_CMYK;
    } else {
      stop(reinterpret_cast<j_common_ptr>(&info_), "neither 1, 3 nor 4 colour components");
    }
    return true;
  }

  bool read_rows(uint8_t* pixels) {
    if (setjmp(failure_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    const size_t stride = size_t{info_.output_width} * static_cast<size_t>(info_.output_components);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels + info_.output_scanline * stride;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    if (failure_.input_ended && (failure_.data_missing || jpeg_has_multiple_scans(&info_))) {
      stop(reinterpret_cast<j_common_ptr>(&info_), "the data end before the last pixel");
    }
    return true;
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  int64_t components() const { return info_.num_components; }
  const char* message() const { return failure_.message; }

 private:
  jpeg_decompress_struct info_ = {};
  jpeg_progress_mgr progress_ = {};
  Failure failure_ = {};
};

// Adobe writes CMYK inverted, and so does everyone after it.
void cmyk_to_rgb(Image* image) {
  const size_t count = static_cast<size_t>(image->width * image->height);
  uint8_t* pixels = image->pixels.data();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t black = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      pixels[3 * i + c] = static_cast<uint8_t>((pixels[4 * i + c] * black + 127) / 255);
    }
  }
  image->pixels.resize(3 * count);
  image->channels = 3;
}

}  // namespace

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels) {
  Reader reader;
  const auto refuse = [&] {
    user_error("formats.decode_jpeg", "a JPEG image: ", reader.message(), " (", name, ")");
  };
  if (!reader.read_header(bytes)) refuse();
  check_pixels("formats.decode_jpeg", reader.width(), reader.height(), name, max_pixels);
  Image image;
  image.width = reader.width();
  image.height = reader.height();
  image.channels = reader.components();
  image.pixels.resize(static_cast<size_t>(image.width * image.height * image.channels));
  if (!reader.read_rows(image.pixels.data())) refuse();
  if (image.channels == 4) cmyk_to_rgb(&image);
  return image;
}

}  // namespace tessera::formats
