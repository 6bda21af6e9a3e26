// SPDX-License-Identifier: Apache-2.0
// Batches on the device that computes. On the CPU they are the loader's own numbers, in place. Elsewhere the
// loader delivers images as uint8 (data/uint8_images.h), in page-locked memory; they are copied on a
// separate stream while the batch before is computed, and become numbers there: normalised, erased, mixed,
// with the bits the host's path has on the CPU (test: device.NumbersOf.AreTheHostsForEverySetting).
//
// Note [Order of copies]: the copy stream copies and the computing stream waits for the copy's event before
// it reads. A batch's host memory goes back to the loader when its own copy has ended; the copy of the batch
// after it may be under way. Bytes on the device belong to the copy stream's allocator, which is told that
// the computing stream reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <memory>
#include <vector>

#include "tessera/data/loader.h"

namespace tessera::eager {

/// number = byte * scale + shift, by channel.
struct Normalisation {
  std::vector<float> scale, shift;
  /// Errors: UserError of data::Transform on values out of range.
  static Normalisation of(const data::TransformOptions& options);
};

/// The numbers [size, channels, height, width] float32 of a batch that was delivered as bytes, on the device
/// of `bytes`: [rows, height, width, channels] uint8, copied from batch.uint8_images. By the device's
/// kernel in one pass, or ATen operations alone, in the order that uint8_images.h states.
at::Tensor numbers_of(const data::Batch& batch, const at::Tensor& bytes, const Normalisation& normalisation);

/// batch.uint8_images.bytes as a tensor over the same memory.
at::Tensor bytes_of(const data::Batch& batch);

/// The images of any batch [size, channels, height, width] float32 on `device`. On the CPU a batch that holds
/// numbers is not copied: the tensor lies over its memory.
at::Tensor images_of(const data::Batch& batch, const Normalisation& normalisation, at::Device device);

/// Loader options for a device: bytes in page-locked memory for anything but the CPU.
void deliver_for(at::Device device, data::LoaderOptions* options);

/// The batches of a training loader with their images: what a TrainState reads its input through. One thread.
class DeviceInput {
 public:
  explicit DeviceInput(const data::TransformOptions& transform, at::Device device = at::kCPU);
  ~DeviceInput();
  DeviceInput(const DeviceInput&) = delete;
  DeviceInput& operator=(const DeviceInput&) = delete;

  struct Input {
    data::Batch batch;
    at::Tensor images;  // [size, channels, height, width] float32; on the CPU over the memory of `batch`
    std::shared_ptr<c10::Event> copied = nullptr;  // end of the copy of its bytes; null where none was made
  };
  /// The next micro-batch of the loader.
  Input next(data::TrainLoader& loader);
  /// Called when the work on a micro-batch has been handed to the device: takes the one after it from the
  /// loader, and its copy begins. Does nothing on the CPU, where waiting for it would be waiting too early.
  void begin_next(data::TrainLoader& loader);
  /// The work on it has been queued. Waits until its bytes have been copied, not for that work.
  void give_back(data::TrainLoader& loader, Input input);
  /// The next batch comes from another loader.
  void forget();

  /// A batch of anyone's, on the device.
  Input with_images(data::Batch batch) const;
  const Normalisation& normalisation() const { return normalisation_; }
  at::Device device() const { return device_; }

 private:
  class Lane;
  struct Copied;

  const Normalisation normalisation_;
  const at::Device device_;
  std::unique_ptr<Lane> lane_;     // null on the CPU
  std::unique_ptr<Copied> ahead_;  // null: nothing is under way
};

}  // namespace tessera::eager
