#include "tessera/ops/avx512_batch_norm.h"
#include "tessera/ops/avx512_batch_norm_rows.h"

namespace tessera::ops::avx512 {
template struct BatchNormRows<float>;
}  // namespace tessera::ops::avx512
