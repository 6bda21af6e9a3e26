// SPDX-License-Identifier: Apache-2.0
// How fast a source becomes batches on this machine, stage by stage: what `tessera data bench` prints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::data {

struct MeasureOptions {
  int64_t images = 1000;  // per stage and number of threads; a smaller source is gone through again
  int64_t batch = 64;
  int64_t rounds = 3;  // the medians count; a round measures every source, stage and number of threads once
  std::vector<int64_t> threads = {1};  // decoding threads of the pipeline
  TransformOptions transform;
  std::function<void(const std::string&)> warn = {};  // names each broken image once
};

struct Stage {
  std::string name;
  double seconds = 0;  // an image; of one thread's CPU time, but for `read`
};

struct Pipeline {
  int64_t threads = 0;
  double images_per_second = 0;
  double cpu_seconds = 0;  // an image, of all threads: what it costs, however busy the machine is
  /// Beside the first source with as many threads: the median of the rounds' ratios, 1 of the first itself.
  double speed_ratio = 1, cpu_ratio = 1;
};

struct Measurement {
  int64_t images = 0;  // different ones that were measured
  int64_t broken = 0;  // of those drawn, left out
  double mean_bytes = 0, mean_width = 0, mean_height = 0;
  std::vector<Stage> stages;        // read, header, decode whole, decode crop, resize, normalise
  std::vector<Pipeline> pipelines;  // the training loader as it is
  int64_t peak_rss_bytes = 0;       // of the process, all sources
};

/// One for each source, with training's random crop throughout. The sources take turns within a round, so
/// that whatever else the machine does meets all alike. Images that cannot be decoded are left out.
/// Errors: UserError where none of those drawn can be.
std::vector<Measurement> measure(std::span<const Source* const> sources, const MeasureOptions& options);

/// `count` JPEGs made in memory, always the same: edges about 500 x 375, mean size 100 to 120 KiB as
/// ImageNet's, with flat and busy places. For measuring where no photos are. Errors: UserError on a count
/// below 1.
std::unique_ptr<Source> open_imagenet_like(int64_t count);

}  // namespace tessera::data
