// SPDX-License-Identifier: Apache-2.0
// Which memory a tensor looks at, and who may read it.
#pragma once

#include <ATen/ATen.h>

namespace tessera::shard {

/// The same of every view; valid as long as one of them lives.
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// From now on, until allow_reads(), reading the memory is an error of LibTorch whose text is `message`, also
/// where no operation is called (torch::save, data_ptr). Setting a data pointer is not reading.
void refuse_reads(c10::StorageImpl* storage, const char* message);
/// The way back. Mutable access stays a little slower until the next StorageImpl::set_data_ptr_noswap().
void allow_reads(c10::StorageImpl* storage);

bool refuses_reads(c10::StorageImpl* storage);

}  // namespace tessera::shard
