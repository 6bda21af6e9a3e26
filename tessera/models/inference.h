// SPDX-License-Identifier: Apache-2.0
// A network on its own: one process, no ranks, no shards, nothing of training.
#pragma once

#include <memory>

#include "tessera/checkpoint/tensor_source.h"
#include "tessera/models/segmented_model.h"

namespace tessera::models {

/// The network of a config. Parameters are hollow (allocate() or load_model() gives them memory); a model
/// that takes statistics takes them over this process's samples.
std::unique_ptr<SegmentedModel> make_model(const arch::ModelConfig& config);

/// The same with the parameters and buffers ("param/NAME", "buffer/NAME") of `tensors`, float32 on the CPU;
/// what else there is in it is left unread. Its logits for images as data::load_image_for_eval makes them,
/// [batch, channels, image, image] float32: model->forward(images, {}), by one thread at a time, and with
/// autograd's graph unless the caller holds a NoGradGuard. Errors: UserError when the config has no classes
/// (weights without a head), and that names the first tensors that are missing or have another shape or
/// dtype.
std::unique_ptr<SegmentedModel> load_model(const arch::ModelConfig& config,
                                           checkpoint::TensorSource& tensors);

}  // namespace tessera::models
