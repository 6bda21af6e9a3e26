// Source -> ordered, augmented, normalised micro-batches, decoded ahead by worker threads.
//
// Order and augmentation are functions of (seed, epoch, sample), never of rank or worker: one permutation per
// epoch, the same on any number of ranks, workers and accumulation steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/data/augment/options.h"
#include "tessera/data/batch.h"
#include "tessera/data/source.h"

namespace tessera::data {

enum class TrainCrop { kNone, kRandomResized, kPad };  // kNone: resize to the size; kPad: zero-pad and crop
enum class EvalCrop { kSquash, kCenter };  // kCenter: short side to size / eval_crop_ratio, centre

/// Pixels to numbers.
struct TransformOptions {
  int64_t image_size = 224;
  int64_t channels = 3;
  TrainCrop train_crop = TrainCrop::kRandomResized;
  double crop_scale_min = 0.08, crop_scale_max = 1.0;             // share of the area
  double crop_ratio_min = 3.0 / 4.0, crop_ratio_max = 4.0 / 3.0;  // aspect
  int64_t crop_padding = 2;                                       // kPad: pixels on each side
  bool flip = true;                                               // horizontally with probability 1/2
  AugmentOptions augment;                                         // training only
  EvalCrop eval_crop = EvalCrop::kCenter;
  double eval_crop_ratio = 0.875;
  bool bicubic = false;  // else bilinear; both antialiased
  std::vector<float> mean = {0.485F, 0.456F, 0.406F}, std = {0.229F, 0.224F, 0.225F};  // one or per channel
};

/// The share of one rank in the order of the global batch.
struct LoaderOptions {
  uint64_t seed = 0;
  int64_t rank = 0, world = 1;
  int64_t batch = 128;  // global: samples of one optimizer step
  int64_t accumulation =
      1;                 // micro-batches per step and rank; batch must be a multiple of world * accumulation
  int64_t workers = 1;   // decoding threads; 0: decode in next()
  int64_t prefetch = 4;  // micro-batches ready ahead, at most
  ImageMixing mix;       // of the samples of a training step
  bool fail_on_error = false;  // else a broken sample is skipped (replaced by its successor) with a count
  double error_limit =
      0.01;  // share of broken samples above which the run stops (one is borne at any above 0)
  std::function<void(const std::string&)>
      warn;  // one named warning per broken sample; called from any thread
};

/// Steps an epoch: floor(size / batch); the remainder is dropped, another one each epoch.
/// Throws UserError when the source holds less than one batch.
int64_t steps_per_epoch(int64_t samples, int64_t batch);

/// The position of a sample in an epoch: element `position` of the epoch's permutation.
std::vector<uint64_t> epoch_permutation(uint64_t seed, int64_t epoch, int64_t samples);

/// Training batches without end. One thread calls next(); workers decode ahead. Starts at any step in O(1)
/// decoded samples, which is what resume needs.
class TrainLoader {
 public:
  TrainLoader(const Source& source, TransformOptions transform, LoaderOptions options, int64_t first_step);
  ~TrainLoader();
  /// The next micro-batch of this rank: `accumulation` of them make a step. Rethrows a worker's error.
  /// Of step s with global batch B, rank r takes micro-batch a = samples [((r * accumulation + a) * b, ... +
  /// b) of the step's B samples, b = B / (world * accumulation).
  Batch next();
  /// Seconds next() has waited for data since the last call of this function.
  double take_wait_seconds();
  int64_t broken_samples() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Every sample of the source exactly once over all ranks, in order, without augmentation. Rank r takes
/// samples r, r + world, ...; its last batch may be short and ranks may differ by one batch in number.
/// A batch holds batch / (world * accumulation) samples, as in training.
class EvalLoader {
 public:
  EvalLoader(const Source& source, TransformOptions transform, LoaderOptions options);
  ~EvalLoader();
  /// False at the end. A broken sample counts as wrong: it is delivered as zeros with label -1.
  bool next(Batch* batch);
  int64_t broken_samples() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One image file's bytes (JPEG or PNG) through the evaluation transform: [channels, size, size].
std::vector<float> load_image_for_eval(const std::string& path, const TransformOptions& transform);

}  // namespace tessera::data
