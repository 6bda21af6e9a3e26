// SPDX-License-Identifier: Apache-2.0
// Which part of an image a sample shows. Pure functions, safe from any thread.
#pragma once

#include <cstdint>

#include "tessera/data/loader.h"
#include "tessera/data/resize.h"

namespace tessera::data {

/// torchvision's RandomResizedCrop: up to ten tries of an area and an aspect ratio, else the largest centred
/// box within the ratios. The draws are elements 0, 1, ... of the stream `key`.
Box random_resized_crop(int64_t width, int64_t height, const TransformOptions& options, uint64_t key);

/// TensorFlow's sample_distorted_bounding_box without boxes, as big_vision's inception_crop calls it. Against
/// torchvision's: the aspect ratio is uniform, not log-uniform; the height, not the area, is uniform between
/// those of the least and the largest area at this ratio; the last row and column of places are never drawn;
/// of up to 100 tries; and the whole image, not its centre, is taken when all fail.
Box inception_crop(int64_t width, int64_t height, const TransformOptions& options, uint64_t key);

/// The whole image squashed to the size.
Scaling squash_scaling(int64_t width, int64_t height, const TransformOptions& options);

/// Of a squash_scaling: first to crop_from pixels a side, and of those a window of image_size anywhere, as
/// big_vision's resize(448)|random_crop(384).
void take_random_window(Scaling& scaling, const TransformOptions& options, uint64_t key);

/// Resize(short side to image_size / eval_crop_ratio) and CenterCrop(image_size) of torchvision and timm, as
/// one scaling. Of EvalCrop::kSquashCenter both sides are resized to that, whatever the shape of the image.
Scaling center_scaling(int64_t width, int64_t height, const TransformOptions& options);

/// 1, 2, 4 or 8, at most `most`: the strongest shrinking of the decoder that leaves at least one pixel of the
/// source box for each output in both directions.
int64_t choose_shrink(const Scaling& scaling, int64_t most);

/// Whichever options.eval_crop names.
Scaling eval_scaling(int64_t width, int64_t height, const TransformOptions& options);

}  // namespace tessera::data
