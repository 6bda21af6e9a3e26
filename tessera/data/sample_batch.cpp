// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/sample_batch.h"

#include <algorithm>
#include <bit>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

constexpr const char* kWhere = "data.loader";

void at_least(const char* name, int64_t value, int64_t low) {
  if (value >= low) return;
  user_error({.where = kWhere, .problem = concat(name, " is ", value), .expected = concat("at least ", low)});
}

}  // namespace

void check_shares(const LoaderOptions& o) {
  if (o.world < 1 || o.rank < 0 || o.rank >= o.world) {
    user_error({.where = kWhere,
                .problem = concat("the rank is ", o.rank, " of ", o.world),
                .expected = "a rank below the number of ranks"});
  }
  at_least("train.accumulation", o.accumulation, 1);
  at_least("the number of workers", o.workers, 0);
  at_least("prefetch", o.prefetch, 1);
  at_least("the batch", o.batch, 1);
}

int64_t micro_batch(const LoaderOptions& o) {
  check_shares(o);
  const int64_t shares = o.world * o.accumulation;
  return (o.batch + shares - 1) / shares;
}

int64_t mix_distance(const LoaderOptions& options) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, options.order.repeats))));
}

void allocate(int64_t size, const TransformOptions& transform, bool as_bytes, Batch* batch) {
  batch->size = size;
  batch->channels = transform.channels;
  batch->height = batch->width = transform.image_size;
  const auto count = static_cast<size_t>(size);
  const auto numbers = static_cast<size_t>(transform.channels * transform.image_size * transform.image_size);
  if (!as_bytes) batch->images.resize(count * numbers);
  batch->labels.resize(count);
  batch->samples.resize(count);
}

PrefetchOptions prefetch_options(const LoaderOptions& options, const Transform& transform, int64_t first) {
  constexpr int64_t kPartNumbers = 1 << 20;  // 4 MiB of numbers: several milliseconds of decoding
  // A multiple of both partners of mix.h and what lies between, so that they share a part.
  const int64_t group = 2 * mix_distance(options);
  const int64_t part = std::max<int64_t>(1, kPartNumbers / transform.sample_size() / group) * group;
  // One for each sample that may be in work has as much to do as any number of them.
  const int64_t workers = std::min(options.workers, options.prefetch * micro_batch(options));
  return {first, workers, options.prefetch, part, options.worker_cores, options.give_up, options.patience};
}

}  // namespace tessera::data
