// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/broken_samples.h"
#include "tessera/data/loader.h"
#include "tessera/data/placement.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/sample_batch.h"
#include "tessera/data/sample_file.h"
#include "tessera/data/transform.h"

namespace tessera::data {

struct EvalLoader::State : BatchMaker {
  State(const Source& source_, TransformOptions transform_, LoaderOptions options_)
      : source(source_),
        transform(std::move(transform_)),
        options(std::move(options_)),
        micro(micro_batch(options)),
        shares(source.size(), options.world, options.tensor_spans),
        broken(source.size(), options),
        prefetcher(*this, prefetch_options(options, transform, 0)) {}

  bool start(int64_t index, Batch* batch) const override {
    const int64_t left = shares.size(options.rank) - index * micro;
    if (left <= 0) return false;
    allocate(std::min(left, micro), transform.options(), options.as_bytes, batch);
    if (options.as_bytes) {
      batch->uint8_images.resize(batch->size, transform.sample_size(), options.picture_memory);
    }
    return true;
  }

  void fill(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const override {
    for (int64_t i = part.first; i < part.last && !stop; ++i) {
      make_sample(shares.sample(options.rank, index * micro + i), i, batch);
    }
  }

  void make_sample(int64_t sample, int64_t i, Batch* batch) const {
    const auto at = static_cast<size_t>(i);
    batch->samples[at] = static_cast<uint64_t>(sample);
    try {
      const Stored stored = source.load(sample);
      if (options.as_bytes) {
        transform.eval_bytes(stored, source.sample_name(sample), batch->uint8_images.row(i));
      } else {
        transform.eval(stored, source.sample_name(sample),
                       batch->images.data() + i * transform.sample_size());
      }
      batch->labels[at] = source.label(sample);
    } catch (const UserError& error) {
      broken.add(sample, error);
      batch->labels[at] = -1;  // its numbers are still the zeros of the allocation
      if (options.as_bytes) std::fill_n(batch->uint8_images.row(i), transform.sample_size(), uint8_t{0});
    }
  }

  const Source& source;
  const Transform transform;
  const LoaderOptions options;
  const int64_t micro;
  const EvaluationShares shares;
  mutable BrokenSamples broken;
  Prefetcher prefetcher;  // last: its threads use all the others
};

EvalLoader::EvalLoader(const Source& source, TransformOptions transform, LoaderOptions options)
    : state_(std::make_unique<State>(source, std::move(transform), std::move(options))) {}
EvalLoader::~EvalLoader() = default;

bool EvalLoader::close(double seconds) { return state_->prefetcher.close(seconds); }
bool EvalLoader::next(Batch* batch) { return state_->prefetcher.next(batch); }
int64_t EvalLoader::broken_samples() const { return state_->broken.count(); }

std::vector<float> load_image_for_eval(const std::string& path, const TransformOptions& options) {
  const Transform transform(options);
  std::vector<float> out(static_cast<size_t>(transform.sample_size()));
  transform.eval({read_sample_file(local_files(), path), {}}, path, out.data());
  return out;
}

}  // namespace tessera::data
