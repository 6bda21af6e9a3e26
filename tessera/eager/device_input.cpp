// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/device_input.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/data/transform.h"
#include "tessera/device/host_values.h"
#include "tessera/device/kernels.h"
#include "tessera/eager/fused_uint8_images.h"

namespace tessera::eager {
namespace {

using data::Erasure, formats::Box, device::on_device;

/// [rows, 1, height, width]: is it in the row's box?
at::Tensor inside(const std::vector<Box>& boxes, int64_t height, int64_t width, at::Device device) {
  std::vector<int64_t> edges;
  for (const Box& box : boxes)
    edges.insert(edges.end(), {box.y, box.y + box.height, box.x, box.x + box.width});
  const auto edge = on_device(at::tensor(edges).view({-1, 4, 1, 1, 1}), device).unbind(1);
  const auto whole = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor y = at::arange(height, whole).view({1, 1, -1, 1}), x = at::arange(width, whole);
  return y.ge(edge[0]).bitwise_and(y.lt(edge[1])).bitwise_and(x.ge(edge[2]).bitwise_and(x.lt(edge[3])));
}

/// The box number `order` of every row that has so many: of all rows at once.
at::Tensor erased(const data::Batch& batch, size_t order, at::Tensor numbers) {
  const auto rows = static_cast<size_t>(batch.uint8_images.rows),
             channels = static_cast<size_t>(batch.channels);
  std::vector<Box> boxes(rows);
  std::vector<float> contents, colors(rows * channels);
  bool zeros = true, plain = true;
  for (size_t row = 0; row < rows; ++row) {
    const auto& erasures = batch.uint8_images.erasures[row];
    if (erasures.size() <= order) continue;
    const Erasure& erasure = erasures[order];
    boxes[row] = erasure.box;
    zeros = zeros && erasure.contents.empty();
    plain = plain && erasure.contents.size() == channels;
    if (plain)
      std::ranges::copy(erasure.contents, colors.begin() + static_cast<std::ptrdiff_t>(row * channels));
    contents.insert(contents.end(), erasure.contents.begin(), erasure.contents.end());
  }
  const at::Tensor mask = inside(boxes, batch.height, batch.width, numbers.device());
  if (zeros) return numbers.masked_fill_(mask, 0);
  if (plain) {
    const at::Tensor color = at::tensor(colors).view({batch.uint8_images.rows, batch.channels, 1, 1});
    return at::where(mask, on_device(color, numbers.device()), numbers);
  }
  // Row after row, in each channel after channel: as contents lie.
  return numbers.masked_scatter_(mask.expand_as(numbers), on_device(at::tensor(contents), numbers.device()));
}

/// The batch's own uint8 images, blended with others. A box of the partner's is a share of 0 there.
at::Tensor mixed(const data::Batch& batch, const at::Tensor& numbers) {
  const at::Tensor own = numbers.narrow(0, 0, batch.size);
  std::vector<int64_t> others;
  std::vector<float> shares;
  std::vector<Box> boxes;
  bool any = false, cut = false;
  for (const data::RowMix& mix : batch.uint8_images.mixes) {
    others.push_back(mix.other);
    shares.push_back(mix.how.cut ? 1.0F : mix.how.share);
    boxes.push_back(mix.how.cut ? mix.how.box : Box());
    any = any || mix.how.share < 1.0F;
    cut = cut || mix.how.cut;
  }
  if (!any) return own;
  const at::Device device = numbers.device();
  at::Tensor share = on_device(at::tensor(shares).view({-1, 1, 1, 1}), device);
  if (cut) {
    const at::Tensor box = inside(boxes, batch.height, batch.width, device);
    share = share.expand(box.sizes()).masked_fill(box, 0);
  }
  const at::Tensor other = numbers.index_select(0, on_device(at::tensor(others), device));
  return own.mul(share).add_(other.mul(1 - share));
}

data::Batch next_batch(data::TrainLoader& loader) {
  const TraceSpan span("data", "wait for data");
  return loader.next();
}

}  // namespace

Normalisation Normalisation::of(const data::TransformOptions& options) {
  const data::Transform transform(options);
  return {transform.scale(), transform.shift()};
}

at::Tensor numbers_of(const data::Batch& batch, const at::Tensor& bytes, const Normalisation& normalisation) {
  if (device::kernels_for(bytes, &device::DeviceKernels::uint8_images) != nullptr && batch.size > 0)
    return fused_uint8_images(batch, bytes, normalisation);
  const auto by_channel = [&](const std::vector<float>& values) {
    return on_device(at::tensor(values).view({1, -1, 1, 1}), bytes.device());
  };
  at::Tensor numbers =
      bytes.permute({0, 3, 1, 2})
          .to(at::kFloat, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous)
          .mul_(by_channel(normalisation.scale))
          .add_(by_channel(normalisation.shift));
  size_t most = 0;
  for (const auto& erasures : batch.uint8_images.erasures) most = std::max(most, erasures.size());
  for (size_t order = 0; order < most; ++order) numbers = erased(batch, order, numbers);
  return mixed(batch, numbers);
}

at::Tensor bytes_of(const data::Batch& batch) {
  return at::from_blob(batch.uint8_images.bytes.get(),
                       {batch.uint8_images.rows, batch.height, batch.width, batch.channels}, at::kByte);
}

at::Tensor images_of(const data::Batch& batch, const Normalisation& normalisation, at::Device device) {
  const at::NoGradGuard no_grad;
  if (batch.uint8_images.rows > 0) {
    // Page-locked memory (deliver_for) is not used again before the copy has ended: LibTorch's allocator of
    // it sees to that, whenever the batch goes. Of other memory the driver has taken the bytes when this
    // returns.
    return numbers_of(batch, bytes_of(batch).to(device, /*non_blocking=*/true), normalisation);
  }
  const at::Tensor images =
      at::from_blob(const_cast<float*>(batch.images.data()),
                    {batch.size, batch.channels, batch.height, batch.width}, at::kFloat);
  return images.to(device);
}

void deliver_for(at::Device device, data::LoaderOptions* options) {
  if (device.is_cpu()) return;
  options->as_bytes = true;
  if (!device.is_cuda()) return;
  options->picture_memory = [](int64_t bytes) {
    const auto locked =
        std::make_shared<at::Tensor>(at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true)));
    return std::shared_ptr<uint8_t>(locked, locked->data_ptr<uint8_t>());
  };
}

/// The stream that copies.
class DeviceInput::Lane {
 public:
  explicit Lane(at::Device device)
      : device_(device.type()), stream_(device_.getStreamFromGlobalPool(device)) {}

  /// Copies the bytes of `batch`; `done` is recorded behind the copy.
  at::Tensor start(const data::Batch& batch, c10::Event& done) const {
    const c10::StreamGuard on_lane(stream_);
    at::Tensor bytes = bytes_of(batch).to(stream_.device(), /*non_blocking=*/true);
    done.record(stream_);
    return bytes;
  }
  /// What is queued on the computing stream from now on may read `bytes`.
  void hand_over(const at::Tensor& bytes, const c10::Event& done) const {
    const c10::Stream computing = device_.getStream(stream_.device());
    done.block(computing);
    bytes.record_stream(computing);
  }

 private:
  const c10::impl::VirtualGuardImpl device_;
  const c10::Stream stream_;
};

struct DeviceInput::Copied {
  data::Batch batch;
  at::Tensor bytes;
  std::shared_ptr<c10::Event> done;  // null: the batch has no bytes
};

DeviceInput::DeviceInput(const data::TransformOptions& transform, at::Device device)
    : normalisation_(Normalisation::of(transform)), device_(device) {
  if (device.is_cuda()) lane_ = std::make_unique<Lane>(device);
}

DeviceInput::~DeviceInput() { forget(); }

void DeviceInput::begin_next(data::TrainLoader& loader) {
  if (!lane_ || ahead_) return;
  ahead_ = std::make_unique<Copied>(Copied{next_batch(loader), {}, nullptr});
  if (ahead_->batch.size == 0) return;
  ahead_->done = std::make_shared<c10::Event>(device_.type());
  ahead_->bytes = lane_->start(ahead_->batch, *ahead_->done);
}

DeviceInput::Input DeviceInput::next(data::TrainLoader& loader) {
  if (!lane_) return with_images(next_batch(loader));
  begin_next(loader);
  const std::unique_ptr<Copied> copied = std::move(ahead_);
  if (copied->batch.size == 0) return {std::move(copied->batch), {}};
  const at::NoGradGuard no_grad;
  lane_->hand_over(copied->bytes, *copied->done);
  const at::Tensor images = numbers_of(copied->batch, copied->bytes, normalisation_);
  return {std::move(copied->batch), images, copied->done};
}

void DeviceInput::give_back(data::TrainLoader& loader, Input input) {
  if (input.copied) input.copied->synchronize();
  input.images.reset();
  loader.give_back(std::move(input.batch));
}

void DeviceInput::forget() {
  if (ahead_ && ahead_->done) ahead_->done->synchronize();
  ahead_.reset();
}

DeviceInput::Input DeviceInput::with_images(data::Batch batch) const {
  // Over memory that moves along with the batch.
  const at::Tensor images = images_of(batch, normalisation_, device_);
  return {std::move(batch), images};
}

}  // namespace tessera::eager
