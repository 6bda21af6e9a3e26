// Which part of an image a sample shows. Pure functions, safe from any thread.
#pragma once

#include <cstdint>

#include "tessera/data/loader.h"
#include "tessera/data/resize.h"

namespace tessera::data {

/// torchvision's RandomResizedCrop: up to ten tries of an area and an aspect ratio, else the largest centred
/// box within the ratios. The draws are elements 0, 1, ... of the stream `key`.
Box random_resized_crop(int64_t width, int64_t height, const TransformOptions& options, uint64_t key);

/// Resize(short side to image_size / eval_crop_ratio) and CenterCrop(image_size) of torchvision and timm, as
/// one scaling; or the whole image squashed to the size.
Scaling eval_scaling(int64_t width, int64_t height, const TransformOptions& options);

}  // namespace tessera::data
