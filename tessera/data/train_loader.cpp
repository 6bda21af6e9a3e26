// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/augment/mix.h"
#include "tessera/data/broken_samples.h"
#include "tessera/data/loader.h"
#include "tessera/data/placement.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/sample_batch.h"
#include "tessera/data/sample_order.h"
#include "tessera/data/transform.h"

namespace tessera::data {

struct TrainLoader::State : BatchMaker {
  State(const Source& source_, TransformOptions transform_, LoaderOptions options_, int64_t first_step)
      : source(source_),
        transform(std::move(transform_)),
        options(std::move(options_)),
        full(shares(options.batch)),
        order(source, options.seed, options.batch, options.order, options.start),
        broken(source.size(), options),
        prefetcher(*this, prefetch_options(options, transform, first_step * options.accumulation)) {}

  /// Micro-batch `index` of this rank, in its step.
  RankSamples share(int64_t index) const {
    const int64_t in_step = index % options.accumulation,
                  samples = order.step_size(index / options.accumulation);
    return (samples == options.batch ? full : shares(samples)).of(options.rank, in_step);
  }
  StepShares shares(int64_t samples) const {
    return {samples, options.batch, options.world, options.accumulation, options.tensor_spans};
  }
  int64_t begin(int64_t index) const { return share(index).first; }

  bool start(int64_t index, Batch* batch) const override {
    const int64_t all = order.step_size(index / options.accumulation);
    allocate(share(index).size, transform.options(), options.as_bytes, batch);
    batch->step_size = all;
    if (options.mix.any()) {
      batch->second_labels.resize(static_cast<size_t>(batch->size));
      batch->label_weights.resize(static_cast<size_t>(batch->size));
    }
    if (options.as_bytes) {
      const int64_t partners = options.mix.any() ? plan_mix(options.mix, mix_step(index), batch) : 0;
      batch->uint8_images.resize(batch->size + partners, transform.sample_size(), options.picture_memory);
    }
    return true;
  }

  MixStep mix_step(int64_t index) const {
    const int64_t step = index / options.accumulation;
    return {options.seed,          step,         order.epoch(step),
            order.step_size(step), begin(index), mix_distance(options)};
  }

  void fill(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const override {
    options.as_bytes ? fill_uint8_images(index, part, stop, batch) : fill_floats(index, part, stop, batch);
  }

  void fill_uint8_images(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const {
    const int64_t step = index / options.accumulation, position = begin(index);
    Uint8Images& pictures = batch->uint8_images;
    const auto make = [&](int64_t at, int64_t row) {
      return make_sample(order.at(step, at), [&](const auto&... sample) {
        pictures.erasures[static_cast<size_t>(row)] = transform.train_bytes(sample..., pictures.row(row));
      });
    };
    for (int64_t i = part.first; i < part.last && !stop; ++i) {
      const auto at = static_cast<size_t>(i);
      const Made made = make(position + i, i);
      batch->labels[at] = made.label;
      batch->samples[at] = made.sample;
      if (pictures.mixes.empty() || pictures.mixes[at].other < batch->size) continue;
      const int64_t partner = mix_partner(position + i, batch->step_size, mix_distance(options));
      batch->second_labels[at] = make(partner, pictures.mixes[at].other).label;
    }
  }

  void fill_floats(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const {
    const int64_t step = index / options.accumulation, position = begin(index);
    const auto make = [&](int64_t at, float* numbers) {
      return make_sample(order.at(step, at),
                         [&](const auto&... sample) { transform.train(sample..., numbers); });
    };
    for (int64_t i = part.first; i < part.last && !stop; ++i) {
      const Made made = make(position + i, batch->images.data() + i * transform.sample_size());
      batch->labels[static_cast<size_t>(i)] = made.label;
      batch->samples[static_cast<size_t>(i)] = made.sample;
    }
    if (!options.mix.any() || stop) return;
    mix(
        options.mix, mix_step(index), part.first, part.last,
        [&](int64_t at, float* numbers) { return make(at, numbers).label; }, batch);
  }

  struct Made {
    uint64_t sample = 0;
    int64_t label = 0;
  };
  /// Calls show(stored, name, key) of what is drawn. A broken sample is replaced by the next readable one of
  /// the source.
  template <typename Show>
  Made make_sample(const Draw& draw, const Show& show) const {
    int64_t sample = draw.sample;
    for (int64_t tries = 0; tries < source.size(); ++tries, sample = (sample + 1) % source.size()) {
      if (broken.known(sample)) continue;
      // The ranks are about to stop together, in the step under way: no sample is worth a search any more.
      if (options.ranks_decide && broken.too_many()) return {};
      try {
        const SampleKey key{options.seed, draw.appearance, static_cast<uint64_t>(sample)};
        show(source.load(sample), source.sample_name(sample), key);
        return {static_cast<uint64_t>(sample + draw.copy * source.size()), source.label(sample)};
      } catch (const UserError& error) {
        broken.add(sample, error);
      }
    }
    if (options.ranks_decide) return {};  // all are broken, and the ranks stop
    user_error(
        {.where = "data.loader", .problem = concat("none of ", source.size(), " samples can be read")});
  }

  const Source& source;
  const Transform transform;
  const LoaderOptions options;
  const StepShares full;  // of a step of options.batch samples
  const SampleOrder order;
  mutable BrokenSamples broken;
  Prefetcher prefetcher;  // last: its threads use all the others
};

TrainLoader::TrainLoader(const Source& source, TransformOptions transform, LoaderOptions options,
                         int64_t first_step) {
  check_mix(options.mix);
  check_shares(options);
  state_ = std::make_unique<State>(source, std::move(transform), std::move(options), first_step);
}
TrainLoader::~TrainLoader() = default;

Batch TrainLoader::next() {
  Batch batch;
  TESSERA_CHECK(state_->prefetcher.next(&batch), "training batches never end");
  if (state_->options.as_bytes && !batch.given_up) finish_labels(&batch);
  return batch;
}

bool TrainLoader::close(double seconds) { return state_->prefetcher.close(seconds); }
void TrainLoader::give_back(Batch batch) { state_->prefetcher.give_back(std::move(batch)); }

double TrainLoader::take_wait_seconds() { return state_->prefetcher.take_wait_seconds(); }
int64_t TrainLoader::broken_samples() const { return state_->broken.count(); }
StreamPosition TrainLoader::position(int64_t step) const { return state_->order.position(step); }
int64_t TrainLoader::unreported_broken() const { return state_->broken.unreported(); }
std::string TrainLoader::report_broken() { return state_->broken.report(); }
void TrainLoader::merge_broken(const std::vector<std::string>& reports) { state_->broken.merge(reports); }
int64_t TrainLoader::agreed_broken() const { return state_->broken.agreed(); }

}  // namespace tessera::data
