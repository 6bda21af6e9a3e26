// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

bool& refuses(c10::StorageImpl* storage);

/// LibTorch can make a storage refuse reads, and has no function for the way back. Naming a private member in
/// an explicit instantiation is allowed ([temp.spec.general] in the standard).
template <bool c10::StorageImpl::*Member>
struct Opened {
  friend bool& refuses(c10::StorageImpl* storage) { return storage->*Member; }
};
template struct Opened<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void refuse_reads(c10::StorageImpl* storage, const char* message) {
  if (!refuses(storage)) storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

void allow_reads(c10::StorageImpl* storage) { refuses(storage) = false; }

bool refuses_reads(c10::StorageImpl* storage) { return refuses(storage); }

}  // namespace tessera::shard
