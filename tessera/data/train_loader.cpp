#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/data/augment/mix.h"
#include "tessera/data/broken_samples.h"
#include "tessera/data/loader.h"
#include "tessera/data/prefetch.h"
#include "tessera/data/sample_batch.h"
#include "tessera/data/transform.h"

namespace tessera::data {

int64_t steps_per_epoch(int64_t samples, int64_t batch) {
  if (batch < 1) user_error("data.loader", "a batch of at least 1: found ", batch);
  if (samples < batch) {
    user_error("data.loader", "at least one batch of samples: the source holds ", human_count(samples),
               " and the batch is ", human_count(batch), " (choose a smaller batch)");
  }
  return samples / batch;
}

std::vector<uint64_t> epoch_permutation(uint64_t seed, int64_t epoch, int64_t samples) {
  const uint64_t key = random_key(random_key(seed, "order"), static_cast<uint64_t>(epoch));
  std::vector<uint64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(key, i - 1, i)]);
  return order;
}

namespace {

/// The permutations of the epochs in work: two, while the workers cross from one to the next.
class EpochOrder {
 public:
  EpochOrder(uint64_t seed, int64_t samples) : seed_(seed), samples_(samples) {}

  std::shared_ptr<const std::vector<uint64_t>> of(int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    auto& order = orders_[epoch];
    if (!order) {
      order = std::make_shared<const std::vector<uint64_t>>(epoch_permutation(seed_, epoch, samples_));
      while (orders_.size() > 2) orders_.erase(orders_.begin());
    }
    return order;
  }

 private:
  const uint64_t seed_;
  const int64_t samples_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const std::vector<uint64_t>>> orders_;
};

}  // namespace

struct TrainLoader::State : BatchMaker {
  State(const Source& source_, TransformOptions transform_, LoaderOptions options_, int64_t first_step)
      : source(source_),
        transform(std::move(transform_)),
        options(std::move(options_)),
        micro(micro_batch(options)),
        epoch_steps(steps_per_epoch(source.size(), options.batch)),
        order(options.seed, source.size()),
        broken(source.size(), options),
        prefetcher(*this, prefetch_options(options, transform, first_step * options.accumulation)) {}

  bool start(int64_t, Batch* batch) const override {
    allocate(micro, transform.options(), batch);
    if (options.mix.any()) {
      batch->second_labels.resize(static_cast<size_t>(micro));
      batch->label_weights.resize(static_cast<size_t>(micro));
    }
    return true;
  }

  void fill(int64_t index, Part part, const std::atomic<bool>& stop, Batch* batch) const override {
    const int64_t step = index / options.accumulation, epoch = step / epoch_steps;
    const int64_t share = options.rank * options.accumulation + index % options.accumulation;
    const int64_t begin = step % epoch_steps * options.batch, position = share * micro;
    const auto permutation = order.of(epoch);
    const auto make = [&](int64_t at, float* numbers) {
      return make_sample(static_cast<int64_t>((*permutation)[static_cast<size_t>(begin + at)]), epoch,
                         numbers);
    };
    for (int64_t i = part.first; i < part.last && !stop; ++i) {
      const Made made = make(position + i, batch->images.data() + i * transform.sample_size());
      batch->labels[static_cast<size_t>(i)] = made.label;
      batch->samples[static_cast<size_t>(i)] = made.sample;
    }
    if (!options.mix.any() || stop) return;
    mix(
        options.mix, {options.seed, step, epoch, options.batch, position}, part.first, part.last,
        [&](int64_t at, float* numbers) { return make(at, numbers).label; }, batch);
  }

  struct Made {
    uint64_t sample;
    int64_t label;
  };
  /// A broken sample is replaced by the next readable one of the source.
  Made make_sample(int64_t sample, int64_t epoch, float* numbers) const {
    for (int64_t tries = 0; tries < source.size(); ++tries, sample = (sample + 1) % source.size()) {
      if (broken.known(sample)) continue;
      try {
        const Image image = source.read(sample, transform.options().channels);
        const auto id = static_cast<uint64_t>(sample);
        transform.train(image, {options.seed, epoch, id}, numbers);
        return {id, source.label(sample)};
      } catch (const UserError& error) {
        broken.add(sample, error);
      }
    }
    user_error("data.loader", "at least one readable sample: found none of ", source.size());
  }

  const Source& source;
  const Transform transform;
  const LoaderOptions options;
  const int64_t micro, epoch_steps;
  const EpochOrder order;
  mutable BrokenSamples broken;
  Prefetcher prefetcher;  // last: its threads use all the others
};

TrainLoader::TrainLoader(const Source& source, TransformOptions transform, LoaderOptions options,
                         int64_t first_step) {
  check_mix(options.mix);
  state_ = std::make_unique<State>(source, std::move(transform), std::move(options), first_step);
}
TrainLoader::~TrainLoader() = default;

Batch TrainLoader::next() {
  Batch batch;
  TESSERA_CHECK(state_->prefetcher.next(&batch), "training batches never end");
  return batch;
}

double TrainLoader::take_wait_seconds() { return state_->prefetcher.take_wait_seconds(); }
int64_t TrainLoader::broken_samples() const { return state_->broken.count(); }

}  // namespace tessera::data
