// Where samples come from. A source is a fixed, indexed list of encoded samples; it never shuffles or
// augments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/formats/image.h"

namespace tessera::data {

using Image = formats::Image;

/// One sample as its source keeps it.
struct Stored {
  std::string file;  // the bytes of an image file (JPEG, PNG); empty where `pixels` holds the image
  Image pixels;      // of sources that keep plain pixels (idx, fake)
};

/// Any number of threads may call the const functions at once.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  virtual int64_t label(int64_t index) const = 0;
  /// Fetches sample `index` without decoding it.
  /// Errors: UserError that names the sample (its file) and the reason.
  virtual Stored load(int64_t index) const = 0;
  /// "train/dress/0001.jpg", "train-images-idx3-ubyte.gz[17]".
  virtual std::string sample_name(int64_t index) const = 0;
  /// Class names in label order; may be numbers.
  virtual const std::vector<std::string>& classes() const = 0;
  /// Where each archive file starts in the list (the first at 0), for an order that reads a few at a time;
  /// empty where there are none.
  virtual std::vector<int64_t> shard_starts() const { return {}; }

  /// Loads and decodes the whole of sample `index`, converted to `channels` (1: luma, 3: RGB).
  /// Errors: as load(), and on bytes that are no image.
  Image read(int64_t index, int64_t channels) const;
};

/// Opens `spec` = "<kind>:<path>" (idx:, folder:, fake:) and the split ("train", "val", "test").
/// idx:DIR     MNIST family: train-*-idx3-ubyte[.gz] and t10k-*; val and test are the t10k files.
/// folder:DIR  DIR/<split>/<class>/<image>.{jpg,jpeg,png}; "val" also accepts "validation", else "test".
/// fake:N      N synthetic images (default 1280), whose class can be learned; `fake_*` give their form.
/// A spec without a kind is taken as folder: when it holds class folders, as idx: when it holds idx files.
/// Errors: UserError on a missing or empty folder, an unknown kind (names the nearest), a truncated file.
struct SourceOptions {
  int64_t fake_image_size = 224, fake_channels = 3, fake_classes = 1000;
};
std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split,
                                    const SourceOptions& options);

}  // namespace tessera::data
