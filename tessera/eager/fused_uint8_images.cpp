// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/fused_uint8_images.h"

#include <ATen/ATen.h>

#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/device/host_values.h"
#include "tessera/device/kernels.h"
#include "tessera/ops/device/fault.h"

namespace tessera::eager {
namespace {

using Erasure = device::Uint8Images::Erasure;
using Mix = device::Uint8Images::Mix;

int32_t narrow(int64_t value) {
  TESSERA_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(), value, " in a picture");
  return static_cast<int32_t>(value);
}

/// Several arrays of numbers of 4 bytes, one behind the other.
class Words {
 public:
  /// Where they begin.
  template <typename T>
  size_t add(std::span<const T> values) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0 && std::is_trivially_copyable_v<T>);
    const size_t begin = words_.size();
    std::vector<int32_t> more(values.size_bytes() / sizeof(int32_t));
    if (!more.empty()) std::memcpy(more.data(), values.data(), values.size_bytes());
    words_.insert(words_.end(), more.begin(), more.end());
    return begin;
  }
  at::Tensor on(at::Device device) const { return device::on_device(at::tensor(words_, at::kInt), device); }

 private:
  std::vector<int32_t> words_;
};

template <typename T>
const T* values_from(const at::Tensor& words, size_t begin) {
  return reinterpret_cast<const T*>(words.const_data_ptr<int32_t>() + begin);
}

/// All boxes that overwrite, those of row i at [begins[i], begins[i + 1]).
struct Erasures {
  std::vector<int32_t> begins = {0};
  std::vector<Erasure> boxes;
  std::vector<float> contents;

  explicit Erasures(const std::vector<std::vector<data::Erasure>>& of_rows, size_t rows) {
    for (size_t row = 0; row < rows; ++row) {
      if (row < of_rows.size()) add(of_rows[row]);
      begins.push_back(narrow(static_cast<int64_t>(boxes.size())));
    }
  }

 private:
  void add(const std::vector<data::Erasure>& row) {
    for (const data::Erasure& erasure : row) {
      const auto begin = static_cast<int64_t>(contents.size());
      boxes.push_back({narrow(erasure.box.y), narrow(erasure.box.x), narrow(erasure.box.height),
                       narrow(erasure.box.width), narrow(begin),
                       narrow(static_cast<int64_t>(erasure.contents.size()))});
      contents.insert(contents.end(), erasure.contents.begin(), erasure.contents.end());
    }
  }
};

std::vector<Mix> mixes_of(const data::Batch& batch) {
  std::vector<Mix> mixes;
  for (const data::RowMix& mix : batch.uint8_images.mixes) {
    const formats::Box box = mix.how.cut ? mix.how.box : formats::Box();
    mixes.push_back({narrow(mix.other), mix.how.cut ? 1.0F : mix.how.share, narrow(box.y), narrow(box.x),
                     narrow(box.height), narrow(box.width)});
  }
  return mixes;
}

}  // namespace

at::Tensor fused_uint8_images(const data::Batch& batch, const at::Tensor& bytes_given,
                              const Normalisation& normalisation) {
  const at::Tensor bytes = bytes_given.contiguous();
  const Erasures erasures(batch.uint8_images.erasures, static_cast<size_t>(batch.uint8_images.rows));
  const std::vector<Mix> mixes = mixes_of(batch);
  Words words;
  const size_t scale = words.add(std::span(normalisation.scale));
  const size_t shift = words.add(std::span(normalisation.shift));
  const size_t begins = words.add(std::span(erasures.begins));
  const size_t boxes = words.add(std::span(erasures.boxes));
  const size_t contents = words.add(std::span(erasures.contents));
  const size_t mixed = words.add(std::span(mixes));
  const at::Tensor there = words.on(bytes.device());
  const at::Tensor numbers =
      at::empty({batch.size, batch.channels, batch.height, batch.width}, bytes.options().dtype(at::kFloat));
  const device::DeviceKernels& kernels = *device::kernels_for(bytes);
  kernels.uint8_images({.size = narrow(batch.size),
                        .height = narrow(batch.height),
                        .width = narrow(batch.width),
                        .channels = narrow(batch.channels),
                        .bytes = bytes.const_data_ptr<uint8_t>(),
                        .scale = values_from<float>(there, scale),
                        .shift = values_from<float>(there, shift),
                        .erasures_begin = values_from<int32_t>(there, begins),
                        .erasures = values_from<Erasure>(there, boxes),
                        .contents = values_from<float>(there, contents),
                        .mixes = mixes.empty() ? nullptr : values_from<Mix>(there, mixed),
                        .numbers = numbers.mutable_data_ptr<float>()},
                       device::KernelStream(kernels, bytes));
  return numbers;
}

namespace {

data::Batch batch_of_everything() {
  data::Batch batch;
  batch.size = 2;
  batch.channels = 3;
  batch.height = 5;
  batch.width = 7;
  data::Uint8Images& uint8_images = batch.uint8_images;
  uint8_images.resize(3, batch.channels * batch.height * batch.width, {});
  for (int64_t i = 0; i < uint8_images.rows * uint8_images.row_bytes; ++i)
    uint8_images.bytes.get()[i] = static_cast<uint8_t>(i * 37);
  const formats::Box box{.x = 2, .y = 1, .width = 3, .height = 2},
      other{.x = 0, .y = 2, .width = 4, .height = 3}, corner{.x = 5, .y = 0, .width = 2, .height = 1};
  const auto noise_in = [&](const formats::Box& place) {
    std::vector<float> noise(static_cast<size_t>(batch.channels * place.width * place.height));
    for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<float>(i) / 8;
    return noise;
  };
  // Of all rows alike, the first, second and third: ATen's operations take no others.
  uint8_images.erasures = {
      {{box, noise_in(box)}, {other, {}}, {corner, {1, 2, 3}}}, {}, {{other, noise_in(other)}}};
  uint8_images.mixes = {{2, {.share = 0.3F, .cut = false, .box = {}}},
                        {0, {.share = 0.5F, .cut = true, .box = box}}};
  return batch;
}

}  // namespace

std::vector<std::string> remove_faulty_uint8_images(device::DeviceKernels& kernels, at::Device device) {
  if (kernels.uint8_images == nullptr) return {};
  const data::Batch batch = batch_of_everything();
  const Normalisation normalisation{{0.01F, 0.02F, 0.03F}, {-1, -2, -3}};
  const auto images = [&] {
    return std::vector<ops::Result>{{"images", 1e-5, images_of(batch, normalisation, device)}};
  };
  const std::string fault = ops::fault("kernel", "uint8_images", [&] {
    device::register_kernels(nullptr, device.type());
    const auto expected = images();
    device::register_kernels(&kernels, device.type());
    return ops::differences(images(), expected);
  });
  device::register_kernels(nullptr, device.type());
  if (fault.empty()) return {};
  kernels.uint8_images = nullptr;
  return {fault};
}

}  // namespace tessera::eager
