#include "tessera/data/measure.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/transform.h"
#include "tessera/formats/image_reader.h"

namespace tessera::data {
namespace {

double now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double seconds_of(int64_t rounds, clockid_t clock, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int64_t round = 0; round < rounds; ++round) {
    const double start = now(clock);
    work();
    seconds.push_back(now(clock) - start);
  }
  return median(std::move(seconds));
}

/// Encoded samples kept in memory, so that only one stage at a time is measured.
struct Held {
  std::vector<Stored> samples;
  std::vector<int64_t> indices;
};

/// Places drawn over the whole source: a prefix of a source sorted by class may be all alike.
Held hold(const Source& source, int64_t images) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  Held held;
  int64_t bytes = 0;
  for (int64_t i = 0; i < images && bytes < kMostBytes; ++i) {
    const auto size = static_cast<uint64_t>(source.size());
    const auto index = images >= source.size()
                           ? i % source.size()
                           : static_cast<int64_t>(random_below(1, static_cast<uint64_t>(i), size));
    held.indices.push_back(index);
    held.samples.push_back(source.load(index));
    bytes += static_cast<int64_t>(held.samples.back().file.size() + held.samples.back().pixels.pixels.size());
    if (i + 1 == source.size()) break;
  }
  return held;
}

std::unique_ptr<formats::ImageReader> open(const Stored& stored) {
  if (stored.file.empty()) return formats::open_pixels(stored.pixels);
  return formats::open_image({reinterpret_cast<const uint8_t*>(stored.file.data()), stored.file.size()},
                             "data bench", {});
}

void describe(const Held& held, Measurement* result) {
  const auto count = static_cast<double>(held.samples.size());
  result->images = static_cast<int64_t>(held.samples.size());
  for (const Stored& stored : held.samples) {
    const auto reader = open(stored);
    result->mean_bytes += static_cast<double>(stored.file.size() + stored.pixels.pixels.size()) / count;
    result->mean_width += static_cast<double>(reader->header().width) / count;
    result->mean_height += static_cast<double>(reader->header().height) / count;
  }
}

void measure_stages(const Source& source, const Held& held, const MeasureOptions& options,
                    Measurement* result) {
  const Transform transform(options.transform);
  std::vector<float> numbers(static_cast<size_t>(transform.sample_size()));
  const auto each = [&](const std::function<void(size_t)>& work, clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
    const double seconds = seconds_of(options.rounds, clock, [&] {
      for (size_t i = 0; i < held.samples.size(); ++i) work(i);
    });
    return seconds / static_cast<double>(held.samples.size());
  };
  const auto key = [](size_t i) { return SampleKey{1, 0, i}; };
  const double read = each([&](size_t i) { source.load(held.indices[i]); }, CLOCK_MONOTONIC);
  const double header = each([&](size_t i) { open(held.samples[i]); });
  const double whole = each([&](size_t i) { formats::read_whole(*open(held.samples[i])); });
  const double crop = each([&](size_t i) { transform.decode_only(held.samples[i], "data bench", key(i)); });
  const double image = each([&](size_t i) { transform.train_image(held.samples[i], "data bench", key(i)); });
  const double all =
      each([&](size_t i) { transform.train(held.samples[i], "data bench", key(i), numbers.data()); });
  result->stages = {
      {"read", read},           {"header", header},         {"decode whole", whole},   {"decode crop", crop},
      {"resize", image - crop}, {"normalise", all - image}, {"decode to numbers", all}};
}

Pipeline run_pipeline(const Source& source, const MeasureOptions& options, int64_t threads) {
  LoaderOptions loader_options;
  loader_options.batch = std::min(options.batch, source.size());
  loader_options.workers = threads;
  loader_options.fail_on_error = true;
  TrainLoader loader(source, options.transform, loader_options, 0);
  const int64_t batches = std::max<int64_t>(1, options.images / loader_options.batch);
  const auto images = static_cast<double>(batches * loader_options.batch);
  // What was made ahead before the clock started must not count: as much is ahead again when it stops.
  for (int64_t i = 0; i < loader_options.prefetch + 1; ++i) loader.give_back(loader.next());
  std::vector<double> cpu;
  const double seconds = seconds_of(options.rounds, CLOCK_MONOTONIC, [&] {
    const double start = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int64_t i = 0; i < batches; ++i) loader.give_back(loader.next());
    cpu.push_back((now(CLOCK_PROCESS_CPUTIME_ID) - start) / images);
  });
  return {threads, images / seconds, median(cpu)};
}

}  // namespace

Measurement measure(const Source& source, const MeasureOptions& options) {
  if (options.images < 1 || options.batch < 1 || options.rounds < 1) {
    user_error("data.measure", "images, batch and rounds of at least 1: found ", options.images, ", ",
               options.batch, ", ", options.rounds);
  }
  Measurement result;
  {
    const Held held = hold(source, options.images);
    describe(held, &result);
    measure_stages(source, held, options, &result);
  }
  for (const int64_t threads : options.threads) {
    result.pipelines.push_back(run_pipeline(source, options, threads));
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  result.peak_rss_bytes = usage.ru_maxrss * 1024;
  return result;
}

}  // namespace tessera::data
