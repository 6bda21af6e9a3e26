// SPDX-License-Identifier: Apache-2.0
// Uint8Images of a batch as bytes, and what is left to be done before they are the numbers that a model
// reads: for a device that does it itself (eager/device_input.h). A quarter of the bytes travels there, and
// no core of the host spends time on it. Plain values.
//
// The numbers are those of the path that makes them on the host, from the same draws:
//   1. number = byte * scale + shift, by channel (Transform::scale, shift)
//   2. boxes of a picture are overwritten, in their order (random erasing)
//   3. a picture is blended with another row, or a box of it replaced by the other's (Mixup, CutMix), from
//   what
//      both were after 2
// Rows [0, size) are the batch's own pictures. Behind them lie the partners that belong to other
// micro-batches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/formats/image.h"

namespace tessera::data {

/// How one sample is mixed: out = share * own + (1 - share) * partner everywhere, or own outside of `box` and
/// partner inside. `share` is also the weight of the own label.
struct ImageMix {
  float share = 1;
  bool cut = false;
  formats::Box box;
};

/// A box of normalised numbers that is overwritten.
struct Erasure {
  formats::Box box;
  std::vector<float> contents;  // empty: zeros; [channels]; or [channels, box.height, box.width]
};

/// Row `other` of the pictures is the partner; a share of 1 means none.
struct RowMix {
  int64_t other = 0;
  ImageMix how;
};

/// Where the bytes lie: page-locked memory makes copies to a device asynchronous. Called from the loader's
/// threads.
using PictureMemory = std::function<std::shared_ptr<uint8_t>(int64_t bytes)>;

struct Uint8Images {
  /// Room for rows of `row_bytes` each, contents undefined; memory that is large enough is kept. `memory`
  /// empty: the heap's.
  void resize(int64_t row_count, int64_t bytes_a_row, const PictureMemory& memory);
  uint8_t* row(int64_t index) const { return bytes.get() + index * row_bytes; }

  std::shared_ptr<uint8_t> bytes;  // [rows, height, width, channels]; copies of this struct share it
  int64_t rows = 0, row_bytes = 0, capacity = 0;
  std::vector<std::vector<Erasure>> erasures;  // [rows]
  std::vector<RowMix> mixes;                   // [size of the batch]; empty: nothing is mixed
};

}  // namespace tessera::data
