// SPDX-License-Identifier: Apache-2.0
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
#include "tessera/plan/spans.h"

namespace tessera::data {

// kNone: resize to the size; kInception: TensorFlow's random crop; kPad: zero-pad and crop; kCenter: as in
// evaluation.
enum class TrainCrop { kNone, kRandomResized, kInception, kPad, kCenter, kSquashRandom };
/// kCenter: short side to size / eval_crop_ratio, centre; kSquashCenter: both sides to that, centre (timm's
/// crop_mode "squash").
enum class EvalCrop { kSquash, kCenter, kSquashCenter };

/// Pixels to numbers.
struct TransformOptions {
  int64_t image_size = 224;
  int64_t channels = 3;
  TrainCrop train_crop = TrainCrop::kRandomResized;
  double crop_scale_min = 0.08, crop_scale_max = 1.0;             // share of the area
  double crop_ratio_min = 3.0 / 4.0, crop_ratio_max = 4.0 / 3.0;  // aspect
  int64_t crop_padding = 2;                                       // kPad: pixels on each side
  int64_t crop_from = 0;   // kSquashRandom: pixels a side before the crop; 0: 8/7 of image_size
  bool flip = true;        // horizontally with probability 1/2
  AugmentOptions augment;  // training only
  EvalCrop eval_crop = EvalCrop::kCenter;
  double eval_crop_ratio = 0.875;
  bool bicubic = false;     // else bilinear; both antialiased
  bool exif = false;        // turn photos as their EXIF orientation says
  bool dct_scaling = true;  // training: decode JPEGs at 1/2, 1/4, 1/8 where the crop stays large enough
  std::vector<float> mean = {0.485F, 0.456F, 0.406F}, std = {0.229F, 0.224F, 0.225F};  // one or per channel
};

/// What the sample at a place of an epoch is (docs/data.md, "Order").
enum class Order {
  kShuffle,    // one random permutation of all samples
  kShards,     // shards permuted, then the samples of `mixed_shards` shards at a time
  kSequential  // as the source lists them
};

/// What becomes of the samples of an epoch that fill no whole batch.
enum class Remainder {
  kDrop,  // left out, others each epoch
  kKeep,  // a last step with fewer samples
  kCarry  // the next epoch's samples complete the batch
};

/// Samples [first, first + size) of a source are drawn with probability weight / (sum of weights).
struct MixPart {
  int64_t size = 0;
  double weight = 1;
};

/// Which samples a step has. The same for all ranks.
struct OrderOptions {
  Order order = Order::kShuffle;
  int64_t mixed_shards = 16;  // kShards: how many are mixed with each other
  Remainder remainder = Remainder::kDrop;
  int64_t repeats = 1;            // copies of a sample in a row, each with an augmentation of its own
  std::vector<MixPart> mix = {};  // parts of the source, in its order; empty: one part, all
};

/// A place in the stream of all epochs: the sample to take next. It does not depend on the batch.
struct StreamPosition {
  int64_t epoch = 0;
  int64_t index = 0;  // samples of the epoch before it, copies of repeated samples included
  bool operator==(const StreamPosition&) const = default;
};

/// The step whose first sample is at `position`. Later steps follow from there, earlier ones are unknown.
struct StreamStart {
  int64_t step = 0;
  StreamPosition position;
};

/// The share of one rank in the order of the global batch.
struct LoaderOptions {
  uint64_t seed = 0;
  int64_t rank = 0, world = 1;
  std::vector<plan::Span> tensor_spans =
      {};                    // remainders are spread over these groups of ranks (placement.h)
  int64_t batch = 128;       // global: samples of one optimizer step
  int64_t accumulation = 1;  // micro-batches per step and rank
  int64_t workers = 1;       // decoding threads; 0: decode in next()
  int64_t prefetch = 4;      // micro-batches ready ahead, at most
  OrderOptions order;
  StreamStart start;           // differs from step 0 after a resume
  ImageMixing mix;             // of the samples of a training step
  bool fail_on_error = false;  // else a broken sample is skipped (replaced by its successor) with a count
  double error_limit =
      0.01;  // share of broken samples above which the run stops (one is borne at any above 0)
  bool ranks_decide = false;      // the limit is judged over all ranks by TrainLoader::merge_broken() and by
                                  // whoever adds up evaluations, not by this rank alone
  bool as_bytes = false;          // Batch::uint8_images instead of images: a device makes the numbers itself
  PictureMemory picture_memory;   // where those lie; empty: the heap
  std::vector<int> worker_cores;  // cores the workers may run on; empty: any
  // Asked while a batch is waited for. `patience` seconds from its first true the wait ends without it
  // (Batch::given_up): files that do not answer keep nobody from stopping. Not without workers. From the
  // thread that calls next().
  std::function<bool()> give_up;
  double patience = 5;
  std::function<void(const std::string&)>
      warn;  // one named warning per broken sample; called from any thread
};

/// Steps an epoch: floor(size / batch); the remainder is dropped, another one each epoch.
/// Throws UserError when the source holds less than one batch.
int64_t steps_per_epoch(int64_t samples, int64_t batch);
/// The same for any remainder: rounded up where it is kept, the exact fraction where it is carried over.
double steps_per_epoch(int64_t samples, int64_t batch, Remainder remainder);

/// Where step `step` begins in a run that has had this batch from its start.
StreamPosition position_of_step(int64_t step, int64_t samples, int64_t batch, Remainder remainder);
/// The reverse: the step that begins at `position` in a run that has had this batch from its start. Between
/// two steps: the one that ends the epoch at the same step as a run that goes on from `position` (with a
/// remainder that is carried over: the earlier one).
int64_t step_of_position(const StreamPosition& position, int64_t samples, int64_t batch, Remainder remainder);
/// The place after `taken` samples of training in a run of `samples` samples an epoch.
StreamPosition position_after(int64_t taken, int64_t samples, int64_t batch, Remainder remainder);
/// How many samples a run with this batch has trained on before `position`. Left-out remainders do not count.
int64_t samples_before(const StreamPosition& position, int64_t samples, int64_t batch, Remainder remainder);

/// Training batches without end. One thread calls next(); workers decode ahead. Starts at any step in O(1)
/// decoded samples, which is what resume needs.
class TrainLoader {
 public:
  /// Requires: first_step >= options.start.step.
  TrainLoader(const Source& source, TransformOptions transform, LoaderOptions options, int64_t first_step);
  ~TrainLoader();
  /// The next micro-batch of this rank: `accumulation` of them make a step. Rethrows a worker's error.
  /// Of step s with global batch B, rank r takes micro-batch a = samples [((r * accumulation + a) * b, ... +
  /// b) of the step's B samples, b = B / (world * accumulation). Where that is no whole number, and in the
  /// last step of an epoch, which may have fewer than B samples (a remainder that is kept, or a new batch
  /// that began: `start`), ranks and micro-batches differ in size and may be empty (StepShares).
  /// Batch::step_size says of how many samples the step's mean is.
  Batch next();
  /// Ends the workers; false: after so many seconds some hang in a file. Nothing but the destructor, which
  /// waits for those, may be called then.
  bool close(double seconds);
  /// Takes back a batch the step is done with: its memory, some tens of MB, serves a later one.
  void give_back(Batch batch);
  /// Seconds next() has waited for data since the last call of this function.
  double take_wait_seconds();
  /// Broken samples this rank knows of.
  int64_t broken_samples() const;
  /// Where a step begins. Requires: step >= options.start.step.
  StreamPosition position(int64_t step) const;

  /// With `ranks_decide`: samples this rank found broken and has not reported. When any rank has some, all
  /// ranks gather their reports and merge all of them, before they use what the step computed.
  int64_t unreported_broken() const;
  std::string report_broken();
  /// Errors: UserError, the same on all ranks, when more than the limit are broken.
  void merge_broken(const std::vector<std::string>& reports);
  /// Broken samples in the reports merged so far, each once: the same on all ranks.
  int64_t agreed_broken() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Every sample of the source exactly once over all ranks, in order, without augmentation. Rank r takes
/// samples r, r + world, ..., and the last ones, where they are fewer than the ranks, go where
/// EvaluationShares says; its last batch may be short and ranks may differ by one batch in number. A batch
/// holds batch / (world * accumulation) samples, rounded up.
class EvalLoader {
 public:
  EvalLoader(const Source& source, TransformOptions transform, LoaderOptions options);
  ~EvalLoader();
  /// False at the end. A broken sample counts as wrong: it is delivered as zeros (as bytes: a black picture)
  /// with label -1. An empty source has no batch.
  bool next(Batch* batch);
  /// As TrainLoader's.
  bool close(double seconds);
  int64_t broken_samples() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One image file's bytes (JPEG or PNG) through the evaluation transform: [channels, size, size].
std::vector<float> load_image_for_eval(const std::string& path, const TransformOptions& transform);

}  // namespace tessera::data
