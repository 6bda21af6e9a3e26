// SPDX-License-Identifier: Apache-2.0
// The inner loops over pixels, in versions for the CPU at hand; all of them give the same bytes and numbers.
// Safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/data/taps.h"

namespace tessera::data {

/// The taps of the pass across, as a kernel wants them.
struct PackedTaps {
  const Taps* taps = nullptr;  // must outlive this
  std::vector<int32_t> row;    // scratch
  // Note [packed weights]: a weight is the sum a * 2^16 + b * 2^8 + c of signed bytes, so that one
  // instruction multiplies four pixels by a quarter each of four weights. [outputs / 4][chunks][a, b, c][4
  // outputs][4 channels][4 taps]. No chunks: the image is too narrow for it.
  int64_t chunks = 0;            // of four taps
  std::vector<int32_t> offsets;  // [outputs, up to a multiple of 16] bytes from the row's start
  std::vector<int8_t> weights;
};

struct PixelKernels {
  const char* name;
  /// Rows will have `inputs` pixels.
  PackedTaps (*pack)(const Taps& taps, int64_t inputs);
  /// One row of `channels` (1 or 3) interleaved bytes to one of taps.outputs() pixels. Both rows have
  /// kRowPadding bytes more, which may be read or overwritten.
  void (*across)(const uint8_t* row, PackedTaps& taps, int64_t channels, uint8_t* out);
  /// out[i] = sum over k of weights[k] * rows[k][i], i < count. The rows have kRowPadding bytes more.
  void (*down)(const uint8_t* const* rows, const int32_t* weights, int64_t taps, int64_t count, uint8_t* out);
  /// Bytes of one row to numbers in each of its channels' planes: byte * scale + shift, rounded after each.
  void (*normalise)(const uint8_t* row, int64_t width, int64_t channels, const float* scale,
                    const float* shift, int64_t plane, float* out);
};

/// For any CPU (compiled for several vector widths), and for those with AVX-512 VBMI and VNNI.
const PixelKernels& plain_kernels();
const PixelKernels* avx512_kernels();  // nullptr on other machines

/// The fastest ones that this CPU runs.
const PixelKernels& pixel_kernels();

}  // namespace tessera::data
