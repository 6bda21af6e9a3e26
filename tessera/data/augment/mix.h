// SPDX-License-Identifier: Apache-2.0
// Mixup (Zhang et al., arXiv 1710.09412) and CutMix (Yun et al., arXiv 1905.04899) of the samples of a step,
// as timm's Mixup. Pure functions, safe from any thread.
//
// Note [The same mix at any layout]: which samples are mixed with each other, and how, is a function of the
// seed, the step and the positions in the global batch, never of ranks and micro-batches. Partners are
// neighbours in that order, which is a random permutation, so nearly every layout holds both in one
// micro-batch; where it does not, the rank makes the partner's numbers itself.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/data/augment/options.h"
#include "tessera/data/batch.h"
#include "tessera/data/resize.h"

namespace tessera::data {

/// The part of a step that one call of mix() works on.
struct MixStep {
  uint64_t seed = 0;
  int64_t step = 0;  // of the run
  int64_t epoch = 0;
  int64_t batch = 0;     // samples of the step over all ranks
  int64_t position = 0;  // in the global batch, of the first sample of `batch`
  int64_t distance =
      1;  // between partners, a power of two: above the number of copies of a sample in sequence
};

/// position XOR distance; behind the last whole group of 2 * distance the neighbour; itself where that lies
/// behind the end. An involution.
int64_t mix_partner(int64_t position, int64_t batch, int64_t distance);
/// timm's box: sides sqrt(1 - lambda) of the image's around (x, y), cut off at the edges.
Box cutmix_box(double lambda, int64_t x, int64_t y, int64_t width, int64_t height);
/// The draw for one position; of a step, of `options.group` positions, of two partners or its own.
ImageMix draw_mix(const ImageMixing& options, const MixStep& step, int64_t position, int64_t width,
                  int64_t height);

/// `own` and `other`: [channels, height, width].
void apply(const ImageMix& mix, const float* other, int64_t channels, int64_t height, int64_t width,
           float* own);

/// Makes the numbers of the sample at a position of the global batch and returns its label.
using MakeSample = std::function<int64_t(int64_t position, float* numbers)>;

/// Mixes samples [first, last) of `batch`, whose numbers and labels are made, in place, and fills their
/// second labels and label weights. `make` is called for partners outside of [first, last). Requires:
/// second_labels and label_weights of the size of the batch.
void mix(const ImageMixing& options, const MixStep& step, int64_t first, int64_t last, const MakeSample& make,
         Batch* batch);

/// The rows of `batch`, whose pictures are bytes: draws which samples are mixed and how, and gives partners
/// outside of the batch a row behind the others. Returns how many those are.
int64_t plan_mix(const ImageMixing& options, const MixStep& step, Batch* batch);
/// Second labels and label weights of such a batch, once all its labels are known and the second labels of
/// those mixed with a row behind the others are.
void finish_labels(Batch* batch);

/// Errors: UserError on values out of range.
void check_mix(const ImageMixing& options);

}  // namespace tessera::data
