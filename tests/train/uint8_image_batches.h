// SPDX-License-Identifier: Apache-2.0
// Batches of a training loader, as numbers and as the bytes that a device makes numbers of.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "rooms.h"
#include "tessera/data/open_source.h"
#include "tessera/eager/device_input.h"
#include "tests/data/uint8_image_cases.h"

namespace tessera::train {

/// [size, channels, height, width] float32, in the batch's memory.
inline at::Tensor host_images(const data::Batch& batch) {
  return at::from_blob(const_cast<float*>(batch.images.data()),
                       {batch.size, batch.channels, batch.height, batch.width}, at::kFloat);
}

/// Calls body(batch with numbers, the same batch with bytes, normalisation) for every rank and three steps of
/// every setting.
template <typename Body>
void over_picture_batches(const Body& body) {
  for (const data::PictureCase& setting : data::uint8_image_cases()) {
    SCOPED_TRACE(setting.name);
    const auto source = data::open_source("fake:50", "train", {20, setting.transform.channels, 7});
    const Normalisation normalisation = Normalisation::of(setting.transform);
    for (int64_t rank = 0; rank < setting.loader.world; ++rank) {
      data::LoaderOptions options = setting.loader;
      options.rank = rank;
      data::TrainLoader numbers(*source, setting.transform, options, 5);
      options.as_bytes = true;
      data::TrainLoader bytes(*source, setting.transform, options, 5);
      for (int64_t step = 0; step < 3 * options.accumulation; ++step) {
        const data::Batch expected = numbers.next(), batch = bytes.next();
        body(expected, batch, normalisation);
      }
    }
  }
}

}  // namespace tessera::train
