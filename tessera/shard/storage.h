// SPDX-License-Identifier: Apache-2.0
// Which memory a tensor looks at.
#pragma once

#include <ATen/ATen.h>

namespace tessera::shard {

/// The same of every view; valid as long as one of them lives.
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace tessera::shard
