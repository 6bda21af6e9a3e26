// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/orientation.h"

#include <cstring>
#include <utility>

namespace tessera::data {
namespace {

void swap_sides(Box* box) {
  std::swap(box->x, box->y);
  std::swap(box->width, box->height);
}

}  // namespace

Turn turn_of(int orientation) {
  const bool swap = orientation >= 5;
  switch (orientation) {
    case 2:
      return {swap, true, false};
    case 3:
      return {swap, true, true};
    case 4:
      return {swap, false, true};
    case 6:
      return {swap, false, true};
    case 7:
      return {swap, true, true};
    case 8:
      return {swap, true, false};
    default:
      return {swap, false, false};  // 1 and 5
  }
}

Turn mirrored(Turn turn) {
  (turn.swap ? turn.flip_y : turn.flip_x) ^= true;
  return turn;
}

Scaling to_stored(const Scaling& upright, Turn turn, int64_t width, int64_t height) {
  Scaling stored = upright;
  if (turn.swap) {
    swap_sides(&stored.source);
    swap_sides(&stored.window);
    std::swap(stored.width, stored.height);
  }
  if (turn.flip_x) {
    stored.source.x = width - stored.source.x - stored.source.width;
    stored.window.x = stored.width - stored.window.x - stored.window.width;
  }
  if (turn.flip_y) {
    stored.source.y = height - stored.source.y - stored.source.height;
    stored.window.y = stored.height - stored.window.y - stored.window.height;
  }
  return stored;
}

Image turned(Image stored, Turn turn) {
  if (!turn.swap && !turn.flip_x && !turn.flip_y) return stored;
  Image out{stored.width, stored.height, stored.channels, {}};
  if (turn.swap) std::swap(out.width, out.height);
  out.pixels.resize(stored.pixels.size());
  uint8_t* to = out.pixels.data();
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x, to += out.channels) {
      int64_t a = turn.swap ? y : x, b = turn.swap ? x : y;
      if (turn.flip_x) a = stored.width - 1 - a;
      if (turn.flip_y) b = stored.height - 1 - b;
      std::memcpy(to, stored.pixels.data() + (b * stored.width + a) * out.channels,
                  static_cast<size_t>(out.channels));
    }
  }
  return out;
}

}  // namespace tessera::data
