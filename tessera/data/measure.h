// How fast a source becomes batches on this machine, stage by stage: what `tessera data bench` prints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::data {

struct MeasureOptions {
  int64_t images = 1000;  // per stage and number of threads; a smaller source is gone through again
  int64_t batch = 64;
  int64_t rounds = 3;                  // the median counts
  std::vector<int64_t> threads = {1};  // decoding threads of the pipeline
  TransformOptions transform;
};

struct Stage {
  std::string name;
  double seconds = 0;  // an image; of one thread's CPU time, but for `read`
};

struct Pipeline {
  int64_t threads = 0;
  double images_per_second = 0;
  double cpu_seconds = 0;  // an image, of all threads: what it costs, however busy the machine is
};

struct Measurement {
  int64_t images = 0;  // different ones that were measured
  double mean_bytes = 0, mean_width = 0, mean_height = 0;
  std::vector<Stage> stages;        // read, header, decode whole, decode crop, resize, normalise
  std::vector<Pipeline> pipelines;  // the training loader as it is
  int64_t peak_rss_bytes = 0;
};

/// Training's random crop throughout. Errors: UserError of a sample that cannot be decoded.
Measurement measure(const Source& source, const MeasureOptions& options);

/// `count` JPEGs made in memory, always the same: edges about 500 x 375, mean size 100 to 120 KiB as
/// ImageNet's, with flat and busy places. For measuring where no photos are. Errors: UserError on a count
/// below 1.
std::unique_ptr<Source> open_imagenet_like(int64_t count);

}  // namespace tessera::data
