#include "tessera/ops/resident_loops.h"

#include "tessera/ops/amx_tiles.h"

namespace tessera::ops {

double amx::resident_products(long turns) {
  const Tiles tiles;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(turns);
}

}  // namespace tessera::ops
