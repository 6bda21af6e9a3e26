// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/mix.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/augment/draws.h"
#include "tessera/data/vector_clones.h"

namespace tessera::data {
namespace {

constexpr const char* kMix = "data.mix";

/// What shares the draw of a position: a number of the mode's own.
uint64_t draw_of(const ImageMixing& options, const MixStep& step, int64_t position) {
  switch (options.mode) {
    case MixMode::kBatch:
      return static_cast<uint64_t>(position / options.group);
    case MixMode::kPair:
      return static_cast<uint64_t>(std::min(position, mix_partner(position, step.batch, step.distance)));
    case MixMode::kElement:
      break;
  }
  return static_cast<uint64_t>(position);
}

/// A rectangle of drawn sides: timm's rand_bbox_minmax.
Box minmax_box(const ImageMixing& options, int64_t width, int64_t height, Draws& draws) {
  const auto side = [&](int64_t whole) {
    const auto least =
        static_cast<int64_t>(static_cast<double>(whole) * static_cast<double>(options.cutmix_minmax[0]));
    const auto most =
        static_cast<int64_t>(static_cast<double>(whole) * static_cast<double>(options.cutmix_minmax[1]));
    return least + draws.below(std::max<int64_t>(1, most - least));
  };
  Box box;
  box.height = side(height);
  box.width = side(width);
  box.y = draws.below(height - box.height + 1);
  box.x = draws.below(width - box.width + 1);
  return box;
}

TESSERA_VECTOR_CLONES
void blend_one(const float* other, float share, int64_t count, float* own) {
  const float rest = 1.0F - share;
  for (int64_t i = 0; i < count; ++i) own[i] = own[i] * share + other[i] * rest;
}

/// Each of two partners by its own share, from the numbers that both had before.
TESSERA_VECTOR_CLONES
void blend_both(float first_share, float second_share, int64_t count, float* first, float* second) {
  const float first_rest = 1.0F - first_share, second_rest = 1.0F - second_share;
  for (int64_t i = 0; i < count; ++i) {
    const float a = first[i], b = second[i];
    first[i] = a * first_share + b * first_rest;
    second[i] = b * second_share + a * second_rest;
  }
}

/// The numbers of one sample.
int64_t numbers(const Batch& batch) { return batch.channels * batch.height * batch.width; }

void mix_both(const ImageMix& first_mix, const ImageMix& second_mix, const Batch& batch, float* first,
              float* second) {
  const int64_t count = numbers(batch);
  if (!first_mix.cut && !second_mix.cut) {
    if (first_mix.share == 1.0F && second_mix.share == 1.0F) return;
    blend_both(first_mix.share, second_mix.share, count, first, second);
    return;
  }
  const std::vector<float> before(first, first + count);
  apply(first_mix, second, batch.channels, batch.height, batch.width, first);
  apply(second_mix, before.data(), batch.channels, batch.height, batch.width, second);
}

}  // namespace

int64_t mix_partner(int64_t position, int64_t batch, int64_t distance) {
  const int64_t whole = batch - batch % (2 * distance);
  const int64_t partner = position < whole ? position ^ distance : position ^ 1;
  return partner < batch ? partner : position;
}

Box cutmix_box(double lambda, int64_t x, int64_t y, int64_t width, int64_t height) {
  const double share = std::sqrt(1.0 - lambda);
  const auto cut_width = static_cast<int64_t>(static_cast<double>(width) * share);
  const auto cut_height = static_cast<int64_t>(static_cast<double>(height) * share);
  Box box;
  box.x = std::clamp<int64_t>(x - cut_width / 2, 0, width);
  box.y = std::clamp<int64_t>(y - cut_height / 2, 0, height);
  box.width = std::clamp<int64_t>(x + (cut_width + 1) / 2, 0, width) - box.x;
  box.height = std::clamp<int64_t>(y + (cut_height + 1) / 2, 0, height) - box.y;
  return box;
}

ImageMix draw_mix(const ImageMixing& options, const MixStep& step, int64_t position, int64_t width,
                  int64_t height) {
  const bool off = options.off_epoch > 0 && step.epoch >= options.off_epoch;
  if (off || mix_partner(position, step.batch, step.distance) == position) return {};
  const uint64_t key = random_key(random_key(step.seed, "mix"), static_cast<uint64_t>(step.step));
  Draws draws(random_key(key, draw_of(options, step, position)));
  if (!draws.chance(options.probability)) return {};
  const bool can_cut = options.cutmix > 0 || !options.cutmix_minmax.empty();
  ImageMix mix;
  mix.cut = can_cut && (options.mixup == 0 || draws.chance(options.switch_probability));
  const double lambda = draws.beta(!mix.cut ? options.mixup : options.cutmix > 0 ? options.cutmix : 1.0);
  if (!mix.cut) {
    mix.share = static_cast<float>(options.at_least_half ? std::max(lambda, 1.0 - lambda) : lambda);
    return mix;
  }
  if (options.cutmix_minmax.empty()) {
    const int64_t y = draws.below(height), x = draws.below(width);
    mix.box = cutmix_box(lambda, x, y, width, height);
  } else {
    mix.box = minmax_box(options, width, height, draws);
  }
  const double cut = static_cast<double>(mix.box.width * mix.box.height);
  mix.share = static_cast<float>(1.0 - cut / static_cast<double>(width * height));
  return mix;
}

// (More than 5 parameters: a loop over plain arrays and their shape.)
void apply(const ImageMix& mix, const float* other, int64_t channels, int64_t height, int64_t width,
           float* own) {
  if (mix.share == 1.0F) return;
  if (!mix.cut) {
    blend_one(other, mix.share, channels * height * width, own);
    return;
  }
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = mix.box.y; y < mix.box.y + mix.box.height; ++y) {
      const int64_t at = (c * height + y) * width + mix.box.x;
      std::copy_n(other + at, mix.box.width, own + at);
    }
  }
}

// (More than 5 parameters: the mixing, the batch, and where its samples come from.)
void mix(const ImageMixing& options, const MixStep& step, int64_t first, int64_t last, const MakeSample& make,
         Batch* batch) {
  const int64_t count = numbers(*batch);
  float* images = batch->images.data();
  const auto draw = [&](int64_t position) {
    return draw_mix(options, step, position, batch->width, batch->height);
  };
  std::vector<float> outside;
  for (int64_t i = first; i < last; ++i) {
    const int64_t position = step.position + i;
    const int64_t partner = mix_partner(position, step.batch, step.distance), other = partner - step.position;
    const auto at = static_cast<size_t>(i);
    const ImageMix own = draw(position);
    const bool mixed = own.share < 1.0F;
    batch->label_weights[at] = own.share;
    batch->second_labels[at] = batch->labels[at];
    if (other >= first && other < last) {
      if (mixed) batch->second_labels[at] = batch->labels[static_cast<size_t>(other)];
      if (other > i) mix_both(own, draw(partner), *batch, images + i * count, images + other * count);
    } else if (mixed) {
      outside.resize(static_cast<size_t>(count));
      batch->second_labels[at] = make(partner, outside.data());
      apply(own, outside.data(), batch->channels, batch->height, batch->width, images + i * count);
    }
  }
}

int64_t plan_mix(const ImageMixing& options, const MixStep& step, Batch* batch) {
  int64_t outside = 0;
  batch->uint8_images.mixes.resize(static_cast<size_t>(batch->size));
  for (int64_t i = 0; i < batch->size; ++i) {
    const int64_t position = step.position + i;
    const int64_t other = mix_partner(position, step.batch, step.distance) - step.position;
    RowMix& row = batch->uint8_images.mixes[static_cast<size_t>(i)];
    row = {i, draw_mix(options, step, position, batch->width, batch->height)};
    if (row.how.share < 1.0F) row.other = other >= 0 && other < batch->size ? other : batch->size + outside++;
  }
  return outside;
}

void finish_labels(Batch* batch) {
  for (size_t i = 0; i < batch->uint8_images.mixes.size(); ++i) {
    const RowMix& row = batch->uint8_images.mixes[i];
    batch->label_weights[i] = row.how.share;
    if (row.other < batch->size) batch->second_labels[i] = batch->labels[static_cast<size_t>(row.other)];
  }
}

void check_mix(const ImageMixing& o) {
  const auto demand = [](bool good, const char* name, double found, const char* expected) {
    if (!good) user_error({.where = kMix, .problem = concat(name, " is ", found), .expected = expected});
  };
  demand(o.mixup >= 0, "train.mixup", o.mixup, "at least 0");
  demand(o.cutmix >= 0, "train.cutmix", o.cutmix, "at least 0");
  demand(o.probability >= 0 && o.probability <= 1, "train.mix_prob", o.probability, "0 to 1");
  demand(o.switch_probability >= 0 && o.switch_probability <= 1, "train.mix_switch_prob",
         o.switch_probability, "0 to 1");
  demand(o.group >= 1, "train.mix_group", static_cast<double>(o.group), "at least 1");
  demand(o.off_epoch >= 0, "train.mix_off_epoch", static_cast<double>(o.off_epoch), "at least 0");
  if (o.cutmix_minmax.empty()) return;
  demand(o.cutmix_minmax.size() == 2, "the number of values in train.cutmix_minmax",
         static_cast<double>(o.cutmix_minmax.size()), "2: the smallest and the largest side of CutMix boxes");
  demand(o.cutmix_minmax[0] >= 0 && o.cutmix_minmax[0] <= o.cutmix_minmax[1] && o.cutmix_minmax[1] <= 1,
         "train.cutmix_minmax[0]", static_cast<double>(o.cutmix_minmax[0]),
         "two sides of CutMix boxes between 0 and 1, the smaller first");
}

}  // namespace tessera::data
