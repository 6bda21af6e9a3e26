// SPDX-License-Identifier: Apache-2.0
// The bytes of uint8 images to the values that a model reads, in one pass (data/uint8_images.h says which): a
// thread for a pixel of all channels. No product is fused with a sum (CMakeLists.txt), so the bits are the
// host's.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::Uint8Images;

constexpr int kThreads = 256;

template <typename Box>
__device__ bool is_in(const Box& box, int32_t y, int32_t x) {
  return y >= box.y && y < box.y + box.height && x >= box.x && x < box.x + box.width;
}

/// Normalised, then overwritten by the picture's boxes in their order.
__device__ float number_of(const Uint8Images& a, int64_t row, int32_t channel, int32_t y, int32_t x) {
  const int64_t pixel = (row * a.height + y) * a.width + x;
  float number =
      static_cast<float>(a.bytes[pixel * a.channels + channel]) * a.scale[channel] + a.shift[channel];
  for (int32_t i = a.erasures_begin[row]; i < a.erasures_begin[row + 1]; ++i) {
    const Uint8Images::Erasure& box = a.erasures[i];
    if (!is_in(box, y, x)) continue;
    const float* contents = a.contents + box.begin;
    if (box.count == 0) {
      number = 0;
    } else if (box.count == a.channels) {
      number = contents[channel];
    } else {
      number = contents[(int64_t{channel} * box.height + (y - box.y)) * box.width + (x - box.x)];
    }
  }
  return number;
}

__global__ void uint8_images_kernel(Uint8Images a) {
  const int64_t area = int64_t{a.height} * a.width;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= a.size * area) return;
  const int64_t row = index / area, place = index % area;
  const auto y = static_cast<int32_t>(place / a.width), x = static_cast<int32_t>(place % a.width);
  float share = 1;  // of the own picture
  int64_t other = row;
  if (a.mixes != nullptr) {
    const Uint8Images::Mix& mix = a.mixes[row];
    share = is_in(mix, y, x) ? 0 : mix.share;
    other = mix.other;
  }
  for (int32_t channel = 0; channel < a.channels; ++channel) {
    float number = share > 0 ? number_of(a, row, channel, y, x) : 0;
    if (share < 1) number = number * share + number_of(a, other, channel, y, x) * (1 - share);
    a.numbers[(row * a.channels + channel) * area + place] = number;
  }
}

}  // namespace

void uint8_images(const Uint8Images& a, void* stream) {
  launch(uint8_images_kernel, divided_up(int64_t{a.size} * a.height * a.width, kThreads), kThreads, a,
         stream);
}

}  // namespace tessera::cuda
