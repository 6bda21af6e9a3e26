#include "tessera/ops/avx512_keyless_rows.h"

namespace tessera::ops::avx512 {

template struct KeylessImage<uint16_t>;

}  // namespace tessera::ops::avx512
