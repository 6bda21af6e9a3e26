#include "tessera/ops/avx512_keyless_rows.h"

namespace tessera::ops::avx512 {

template struct KeylessImage<float>;

}  // namespace tessera::ops::avx512
