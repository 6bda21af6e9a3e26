// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/formats/safetensors.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kLongRun = 64 << 10;  // bytes that are read by themselves

// Reads ascending stretches of a tensor through a window of it.
class Window {
 public:
  // `end`: one past the last element that is wanted.
  Window(TensorSource& source, size_t tensor, int64_t width, int64_t end)
      : source_(source), tensor_(tensor), width_(width), end_(end) {}

  void read(int64_t begin, std::span<std::byte> out) {
    while (!out.empty()) {
      const int64_t held = static_cast<int64_t>(bytes_.size()) / width_;
      if (begin >= begin_ + held) {  // (never before begin_: stretches ascend)
        begin_ = begin;
        bytes_.resize(static_cast<size_t>(
            std::min(end_ - begin, static_cast<int64_t>(kWindowBytes) / width_) * width_));
        source_.read(tensor_, begin, bytes_);
        continue;
      }
      const auto skip = static_cast<size_t>((begin - begin_) * width_);
      const size_t size = std::min(out.size(), bytes_.size() - skip);
      std::memcpy(out.data(), bytes_.data() + skip, size);
      out = out.subspan(size);
      begin += static_cast<int64_t>(size) / width_;
    }
  }

 private:
  TensorSource& source_;
  size_t tensor_;
  int64_t width_, end_;
  int64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace

void read_region(TensorSource& source, size_t tensor, const Region& region, std::span<std::byte> out) {
  const auto& [name, dtype, shape] = source.tensors().at(tensor);
  const auto width = static_cast<int64_t>(formats::dtype_size(dtype));
  TESSERA_CHECK(region.fits(shape) && static_cast<int64_t>(out.size()) == region.numel() * width, name, ' ',
                to_string(region), " into ", out.size(), " bytes");
  SharedRuns runs = SharedRuns::in_tensor(shape, region);
  Window window(source, tensor, width, runs.end_in_a());
  for (const SharedRun& run : runs) {
    const auto part = out.subspan(static_cast<size_t>(run.b * width), static_cast<size_t>(run.count * width));
    run.count == region.numel() || run.count* width >= kLongRun ? source.read(tensor, run.a, part)
                                                                : window.read(run.a, part);
  }
}

}  // namespace tessera::checkpoint
