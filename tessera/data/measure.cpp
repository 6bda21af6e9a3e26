// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <functional>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/random.h"
#include "tessera/data/say_once.h"
#include "tessera/data/transform.h"
#include "tessera/formats/image_reader.h"

namespace tessera::data {
namespace {

/// Encoded samples kept in memory, so that only one stage at a time is measured.
struct Held {
  std::vector<Stored> samples;
  std::vector<int64_t> indices;
  int64_t broken = 0;  // of those drawn
};

std::unique_ptr<formats::ImageReader> open(const Stored& stored, const std::string& name = "data bench") {
  if (stored.file.empty()) return formats::open_pixels(stored.pixels);
  return formats::open_image({reinterpret_cast<const uint8_t*>(stored.file.data()), stored.file.size()}, name,
                             {});
}

/// Places drawn over the whole source: a prefix of a source sorted by class may be all alike.
Held hold(const Source& source, int64_t images, const std::function<void(const std::string&)>& warn) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  Held held;
  int64_t bytes = 0;
  std::string last;
  for (int64_t i = 0; i < images && bytes < kMostBytes; ++i) {
    const auto size = static_cast<uint64_t>(source.size());
    const auto index = images >= source.size()
                           ? i % source.size()
                           : static_cast<int64_t>(random_below(1, static_cast<uint64_t>(i), size));
    try {
      Stored stored = source.load(index);
      formats::read_whole(*open(stored, source.sample_name(index)));
      bytes += static_cast<int64_t>(stored.file.size() + stored.pixels.pixels.size());
      held.indices.push_back(index);
      held.samples.push_back(std::move(stored));
    } catch (const UserError& error) {
      ++held.broken;
      last = error.what();
      warn(concat("broken sample ", index, " skipped: ", last));
    }
    if (i + 1 == source.size()) break;
  }
  if (held.samples.empty())
    user_error({.where = "data.measure",
                .problem = concat("none of ", held.broken, " images can be decoded (the last: ", last, ")")});
  return held;
}

void describe(const Held& held, Measurement* result) {
  const auto count = static_cast<double>(held.samples.size());
  result->images = static_cast<int64_t>(held.samples.size());
  result->broken = held.broken;
  for (const Stored& stored : held.samples) {
    const auto reader = open(stored);
    result->mean_bytes += static_cast<double>(stored.file.size() + stored.pixels.pixels.size()) / count;
    result->mean_width += static_cast<double>(reader->header().width) / count;
    result->mean_height += static_cast<double>(reader->header().height) / count;
  }
}

/// A source and what each round found of it.
struct Subject {
  const Source* source = nullptr;
  Held held;
  std::vector<std::vector<double>> stages;      // seconds an image: [stage][round]
  std::vector<std::vector<double>> rates, cpu;  // [pipeline][round]: images a second, CPU seconds an image
};

constexpr std::array<const char*, 7> kStages = {"read",   "header",    "decode whole",     "decode crop",
                                                "resize", "normalise", "decode to numbers"};

/// In the order of kStages.
std::vector<double> stage_round(const Subject& subject, const Transform& transform) {
  const Held& held = subject.held;
  std::vector<float> numbers(static_cast<size_t>(transform.sample_size()));
  const auto each = [&](const std::function<void(size_t)>& work, clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
    const double start = clock_seconds(clock);
    for (size_t i = 0; i < held.samples.size(); ++i) work(i);
    return (clock_seconds(clock) - start) / static_cast<double>(held.samples.size());
  };
  const auto key = [](size_t i) { return SampleKey{1, 0, i}; };
  const double read = each([&](size_t i) { subject.source->load(held.indices[i]); }, CLOCK_MONOTONIC);
  const double header = each([&](size_t i) { open(held.samples[i]); });
  const double whole = each([&](size_t i) { formats::read_whole(*open(held.samples[i])); });
  const double crop = each([&](size_t i) { transform.decode_only(held.samples[i], "data bench", key(i)); });
  const double image = each([&](size_t i) { transform.train_image(held.samples[i], "data bench", key(i)); });
  const double all =
      each([&](size_t i) { transform.train(held.samples[i], "data bench", key(i), numbers.data()); });
  return {read, header, whole, crop, image - crop, all - image, all};
}

/// The loader from its beginning, so that every source and round has the same work.
void pipeline_round(const MeasureOptions& options, size_t pipeline, Subject* subject) {
  LoaderOptions loader_options;
  loader_options.batch = std::min(options.batch, subject->source->size());
  loader_options.workers = options.threads[pipeline];
  loader_options.error_limit = 1;
  loader_options.warn = options.warn;
  TrainLoader loader(*subject->source, options.transform, loader_options, 0);
  const int64_t batches = std::max<int64_t>(1, options.images / loader_options.batch);
  const auto images = static_cast<double>(batches * loader_options.batch);
  // What was made ahead before the clock started must not count: as much is ahead again when it stops.
  for (int64_t i = 0; i < loader_options.prefetch + 1; ++i) loader.give_back(loader.next());
  const double start = clock_seconds(CLOCK_MONOTONIC), cpu_start = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
  for (int64_t i = 0; i < batches; ++i) loader.give_back(loader.next());
  subject->rates[pipeline].push_back(images / (clock_seconds(CLOCK_MONOTONIC) - start));
  subject->cpu[pipeline].push_back((clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_start) / images);
}

double median_ratio(const std::vector<double>& values, const std::vector<double>& of_first) {
  std::vector<double> ratios;
  for (size_t round = 0; round < values.size(); ++round) ratios.push_back(values[round] / of_first[round]);
  return median(std::move(ratios));
}

Measurement result_of(const Subject& subject, const Subject& first, const MeasureOptions& options) {
  Measurement result;
  describe(subject.held, &result);
  for (size_t i = 0; i < kStages.size(); ++i)
    result.stages.push_back({kStages[i], median(subject.stages[i])});
  for (size_t i = 0; i < options.threads.size(); ++i) {
    result.pipelines.push_back({.threads = options.threads[i],
                                .images_per_second = median(subject.rates[i]),
                                .cpu_seconds = median(subject.cpu[i]),
                                .speed_ratio = median_ratio(subject.rates[i], first.rates[i]),
                                .cpu_ratio = median_ratio(subject.cpu[i], first.cpu[i])});
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  result.peak_rss_bytes = usage.ru_maxrss * 1024;
  return result;
}

}  // namespace

std::vector<Measurement> measure(std::span<const Source* const> sources, const MeasureOptions& given) {
  MeasureOptions options = given;
  options.warn = say_once(given.warn ? given.warn : [](const std::string&) {});
  if (options.images < 1 || options.batch < 1 || options.rounds < 1) {
    user_error({.where = "data.measure",
                .problem = concat("images, batch and rounds are ", options.images, ", ", options.batch,
                                  " and ", options.rounds),
                .expected = "values of at least 1"});
  }
  const size_t pipelines = options.threads.size();
  std::vector<Subject> subjects;
  for (const Source* source : sources) {
    subjects.push_back({.source = source,
                        .held = hold(*source, options.images, options.warn),
                        .stages = std::vector<std::vector<double>>(kStages.size()),
                        .rates = std::vector<std::vector<double>>(pipelines),
                        .cpu = std::vector<std::vector<double>>(pipelines)});
  }
  const Transform transform(options.transform);
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (Subject& subject : subjects) {
      const auto seconds = stage_round(subject, transform);
      for (size_t i = 0; i < seconds.size(); ++i) subject.stages[i].push_back(seconds[i]);
    }
    for (size_t pipeline = 0; pipeline < pipelines; ++pipeline) {
      for (Subject& subject : subjects) pipeline_round(options, pipeline, &subject);
    }
  }
  std::vector<Measurement> results;
  for (const Subject& subject : subjects) results.push_back(result_of(subject, subjects.front(), options));
  return results;
}

}  // namespace tessera::data
