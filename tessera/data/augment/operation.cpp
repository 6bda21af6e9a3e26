// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/operation.h"

#include <algorithm>
#include <cmath>

#include "tessera/data/augment/blur.h"
#include "tessera/data/augment/pixel_ops.h"
#include "tessera/data/augment/tensorflow_ops.h"

namespace tessera::data {
namespace {

Affine map_of(const Operation& operation, Dialect dialect, const Image& image) {
  switch (operation.op) {
    case Op::kShearX:
      return shear_x(operation.amount);
    case Op::kShearY:
      return shear_y(operation.amount);
    case Op::kTranslateX:
      return translate_x(operation.amount);
    case Op::kTranslateY:
      return translate_y(operation.amount);
    default:
      return dialect == Dialect::kTensorFlow
                 ? tensorflow::rotation(operation.amount, image.width, image.height)
                 : rotation(operation.amount, image.width, image.height);
  }
}

/// True: done, where TensorFlow's arithmetic is another than Pillow's.
bool apply_tensorflow(const Operation& operation, const Fill& fill, Image* image) {
  const auto factor = static_cast<float>(operation.amount);
  switch (operation.op) {
    case Op::kColor:
      tensorflow::color(image, factor);
      return true;
    case Op::kContrast:
      tensorflow::contrast(image, factor);
      return true;
    case Op::kSharpness:
      tensorflow::sharpness(image, factor);
      return true;
    case Op::kCutout:
      tensorflow::cutout(image, operation.x, operation.y, static_cast<int64_t>(operation.amount), fill[0]);
      return true;
    case Op::kShearX:
    case Op::kShearY:
    case Op::kTranslateX:
    case Op::kTranslateY:
    case Op::kRotate:
      *image = tensorflow::warp_nearest(*image, map_of(operation, Dialect::kTensorFlow, *image), fill);
      return true;
    default:
      return false;
  }
}

}  // namespace

void apply(const Operation& operation, const Style& style, Image* image) {
  if (style.dialect == Dialect::kTensorFlow && apply_tensorflow(operation, style.fill, image)) return;
  const auto factor = static_cast<float>(operation.amount);
  const auto whole = static_cast<int64_t>(operation.amount);
  switch (operation.op) {
    case Op::kIdentity:
      return;
    case Op::kAutoContrast:
      return auto_contrast(image);
    case Op::kEqualize:
      return equalize(image);
    case Op::kInvert:
      return invert(image);
    case Op::kPosterize:
      return posterize(image, std::clamp<int64_t>(whole, 0, 8));
    case Op::kSolarize:
      return solarize(image, operation.amount);
    case Op::kSolarizeAdd:
      return solarize_add(image, whole);
    case Op::kBrightness:
      return brightness(image, factor);
    case Op::kContrast:
      return contrast(image, factor);
    case Op::kColor:
      return color(image, factor);
    case Op::kSharpness:
      return sharpness(image, factor);
    case Op::kHue:
      return turn_hue(image, operation.amount);
    case Op::kBlur:
      return gaussian_blur(image, factor);
    case Op::kCutout:
      return tensorflow::cutout(image, operation.x, operation.y, whole, style.fill[0]);
    case Op::kShearX:
    case Op::kShearY:
    case Op::kTranslateX:
    case Op::kTranslateY:
    case Op::kRotate:
      *image = warp(*image, map_of(operation, style.dialect, *image), operation.filter, style.fill);
  }
}

}  // namespace tessera::data
