// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <optional>

// libjpeg's headers need <cstdio> before them.
#include <jerror.h>
#include <jpeglib.h>

#include "tessera/base/error.h"
#include "tessera/formats/exif.h"
#include "tessera/formats/jpeg_huffman.h"

namespace tessera::formats {
namespace {

constexpr int kMaxScans = 500;  // each scan walks over the whole image: a small file must not cost minutes
constexpr int64_t kMaxShrink = 8;
// Narrower parts would be upsampled in another way than the whole (three chroma samples at least).
constexpr int64_t kLeastWidth = 8;

struct Failure {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  bool input_ended = false;   // an end marker was made up
  bool data_missing = false;  // pixels had to be made up
  bool not_plain = false;     // for libjpeg's own Huffman decoder
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

[[noreturn]] void on_surprise(j_decompress_ptr info) {
  failure_of(reinterpret_cast<j_common_ptr>(info)).not_plain = true;
  stop(reinterpret_cast<j_common_ptr>(info), "");
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
class Decompression {
 public:
  Decompression() {
    info_.err = jpeg_std_error(&failure_.manager);
    failure_.manager.error_exit = on_error;
    failure_.manager.emit_message = on_message;
    failure_.manager.output_message = on_output;
    progress_.progress_monitor = on_progress;
  }
  ~Decompression() { jpeg_destroy_decompress(&info_); }
  Decompression(const Decompression&) = delete;
  Decompression& operator=(const Decompression&) = delete;

  bool read_header(std::span<const uint8_t> bytes, bool keep_exif) {
    if (setjmp(failure_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    if (keep_exif) jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
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

  /// Rows from part.y on, columns from at least part.x on. `huffman`: used where it suits.
  bool start(const Box& part, int64_t shrink, JpegHuffman* huffman) {
    if (setjmp(failure_.jump) != 0) return false;
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(shrink);
    jpeg_start_decompress(&info_);
    const auto whole = static_cast<int64_t>(info_.output_width);
    // Chroma of the neighbouring pixels takes part in the smooth upsampling of the outermost ones.
    int64_t left = std::max<int64_t>(0, part.x - 1), right = std::min(whole, part.x + part.width + 1);
    right = std::min(whole, std::max(right, left + kLeastWidth));
    left = std::max<int64_t>(0, std::min(left, right - kLeastWidth));
    auto first = static_cast<JDIMENSION>(left), width = static_cast<JDIMENSION>(right - left);
    if (width < info_.output_width) jpeg_crop_scanline(&info_, &first, &width);
    lead_ = static_cast<size_t>(part.x - static_cast<int64_t>(first));
    huffman_ = huffman;
    if (huffman != nullptr) {
      const int block = info_.comps_in_scan == 1 ? 1 : info_.max_h_samp_factor;
      const auto mcu = static_cast<JDIMENSION>(block * info_.min_DCT_scaled_size);
      huffman->attach(info_, on_surprise, first / mcu, (first + width - 1) / mcu);
    }
    if (part.y > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(part.y));
    return true;
  }

  bool read_row(uint8_t* row) {
    if (setjmp(failure_.jump) != 0) return false;
    jpeg_read_scanlines(&info_, &row, 1);
    // The arithmetic decoder makes up what is missing without a word.
    const bool complete = !failure_.data_missing && !jpeg_has_multiple_scans(&info_) && !info_.arith_code;
    if (failure_.input_ended && !complete) {
      stop(reinterpret_cast<j_common_ptr>(&info_), "the data end before the last pixel");
    }
    if (info_.output_scanline == info_.output_height) read_to_end();
    return true;
  }

  int exif_orientation() const {
    static constexpr char kMagic[] = "Exif\0";  // and the zero of the literal
    for (const jpeg_marker_struct* marker = info_.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->data_length < sizeof kMagic || std::memcmp(marker->data, kMagic, sizeof kMagic) != 0)
        continue;
      return formats::exif_orientation(std::span(marker->data, marker->data_length).subspan(sizeof kMagic));
    }
    return 1;
  }

  bool suits_huffman() const { return JpegHuffman::suits(info_); }
  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  int64_t components() const { return info_.num_components; }
  /// After start(): bytes of a row, and how many of its pixels lie left of the part.
  size_t row_bytes() const {
    return size_t{info_.output_width} * static_cast<size_t>(info_.output_components);
  }
  size_t lead() const { return lead_; }
  const Failure& failure() const { return failure_; }

 private:
  /// To the end marker. A marker that damage has put among the data ends them, and libjpeg makes up the rest
  /// of the picture; only here does it look at that marker, and refuses one that cannot stand there. Pillow
  /// reads on, too.
  void read_to_end() {
    if (huffman_ != nullptr) huffman_->leave(info_);
    jpeg_finish_decompress(&info_);
  }

  const JpegHuffman* huffman_ = nullptr;
  jpeg_decompress_struct info_ = {};
  jpeg_progress_mgr progress_ = {};
  Failure failure_ = {};
  size_t lead_ = 0;
};

// Adobe writes CMYK inverted, and so does everyone after it.
void cmyk_to_rgb(uint8_t* pixels, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t black = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      pixels[3 * i + c] = static_cast<uint8_t>((pixels[4 * i + c] * black + 127) / 255);
    }
  }
}

class JpegReader : public ImageReader {
 public:
  JpegReader(std::span<const uint8_t> bytes, const std::string& name, const OpenOptions& options)
      : bytes_(bytes), name_(name) {
    decompression_.emplace();
    if (!decompression_->read_header(bytes, options.read_orientation)) refuse();
    header_.width = decompression_->width();
    header_.height = decompression_->height();
    check_pixels("formats.decode_jpeg", header_.width, header_.height, name, options.max_pixels);
    header_.channels = decompression_->components() == 1 ? 1 : 3;
    header_.max_shrink = kMaxShrink;
    if (options.read_orientation) header_.orientation = decompression_->exif_orientation();
  }

  void start(const Box& part, int64_t shrink) override {
    TESSERA_CHECK(part.x >= 0 && part.y >= 0 && part.width > 0 && part.height > 0 &&
                      part.x + part.width <= (header_.width + shrink - 1) / shrink &&
                      part.y + part.height <= (header_.height + shrink - 1) / shrink,
                  "part of the image");
    part_ = part;
    shrink_ = shrink;
    if (decompression_->suits_huffman()) huffman_ = std::make_unique_for_overwrite<JpegHuffman>();
    if (!decompression_->start(part, shrink, huffman_.get())) start_again();
    row_.resize(decompression_->row_bytes() + kRowPadding);
  }

  const uint8_t* next_row() override {
    if (!decompression_->read_row(row_.data())) {
      start_again();
      for (int64_t y = 0; y <= rows_read_; ++y) {
        if (!decompression_->read_row(row_.data())) refuse();
      }
    }
    ++rows_read_;
    const auto components = static_cast<size_t>(decompression_->components());
    uint8_t* first = row_.data() + decompression_->lead() * components;
    if (components == 4) cmyk_to_rgb(first, static_cast<size_t>(part_.width));
    return first;
  }

 private:
  [[noreturn]] void refuse() const {
    user_error(
        {.where = "formats.decode_jpeg",
         .problem = concat("cannot decode the JPEG image ", name_, ": ", decompression_->failure().message)});
  }

  /// From the header on, with libjpeg's own Huffman decoder.
  void start_again() {
    if (!decompression_->failure().not_plain) refuse();
    decompression_.emplace();
    if (!decompression_->read_header(bytes_, false) || !decompression_->start(part_, shrink_, nullptr))
      refuse();
  }

  const std::span<const uint8_t> bytes_;
  const std::string name_;
  std::unique_ptr<JpegHuffman> huffman_;
  std::optional<Decompression> decompression_;
  Box part_;
  int64_t shrink_ = 1, rows_read_ = 0;
  std::vector<uint8_t> row_;
};

}  // namespace

std::unique_ptr<ImageReader> open_jpeg(std::span<const uint8_t> bytes, const std::string& name,
                                       const OpenOptions& options) {
  return std::make_unique<JpegReader>(bytes, name, options);
}

}  // namespace tessera::formats
