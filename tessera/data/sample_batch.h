// SPDX-License-Identifier: Apache-2.0
// What the two loaders share: checking the share of a rank, giving a batch its memory.
#pragma once

#include <cstdint>

#include "tessera/data/batch.h"
#include "tessera/data/loader.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/transform.h"

namespace tessera::data {

/// Errors: UserError on values out of range.
void check_shares(const LoaderOptions& options);

/// The most samples of a rank's micro-batch: batch / (world * accumulation), rounded up.
/// Errors: as check_shares().
int64_t micro_batch(const LoaderOptions& options);

/// Positions between the partners of a mix: copies of one sample lie in sequence and are no partners.
int64_t mix_distance(const LoaderOptions& options);

/// Memory for `size` samples. With `as_bytes` none for what they show.
void allocate(int64_t size, const TransformOptions& transform, bool as_bytes, Batch* batch);

/// From the loader's options; `first`: number of the first batch.
PrefetchOptions prefetch_options(const LoaderOptions& options, const Transform& transform, int64_t first);

}  // namespace tessera::data
