// SPDX-License-Identifier: Apache-2.0
// The pieces between the bytes of a JPEG and the numbers of a batch, one thread.
//
//   cmake --build --preset dev --target bench_decode && build/dev/bin/bench_decode --benchmark_filter=Resize
#include <benchmark/benchmark.h>

#include "tessera/base/random.h"
#include "tessera/data/measure.h"
#include "tessera/data/pixel_kernels.h"
#include "tessera/data/resize.h"
#include "tessera/data/transform.h"
#include "tessera/formats/image_reader.h"

namespace tessera {
namespace {

constexpr int64_t kImages = 20;

/// ImageNet-like files, about 500 x 375 and 100 to 120 KiB.
const std::vector<data::Stored>& files() {
  static const std::vector<data::Stored> all = [] {
    const auto source = data::open_imagenet_like(kImages);
    std::vector<data::Stored> loaded;
    for (int64_t i = 0; i < kImages; ++i) loaded.push_back(source->load(i));
    return loaded;
  }();
  return all;
}

std::unique_ptr<formats::ImageReader> open(int64_t i) {
  const std::string& file = files()[static_cast<size_t>(i % kImages)].file;
  return formats::open_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, "bench", {});
}

void Header(benchmark::State& state) {
  int64_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(open(i++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Header);

void DecodeWhole(benchmark::State& state) {
  int64_t i = 0, bytes = 0;
  for (auto _ : state) {
    bytes += static_cast<int64_t>(files()[static_cast<size_t>(i % kImages)].file.size());
    benchmark::DoNotOptimize(formats::read_whole(*open(i++)));
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(bytes);
}
BENCHMARK(DecodeWhole)->Unit(benchmark::kMicrosecond);

/// The middle of the picture, half of its width and height, at 1/shrink.
void DecodeRegion(benchmark::State& state) {
  const int64_t shrink = state.range(0);
  int64_t i = 0;
  for (auto _ : state) {
    const auto reader = open(i++);
    const int64_t width = reader->header().width / shrink, height = reader->header().height / shrink;
    reader->start({width / 4, height / 4, width / 2, height / 2}, shrink);
    for (int64_t y = 0; y < height / 2; ++y) benchmark::DoNotOptimize(reader->next_row());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(DecodeRegion)->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMicrosecond);

/// A square of this edge to 224 x 224, RGB.
void Resize(benchmark::State& state, data::Filter filter) {
  const int64_t edge = state.range(0);
  formats::Image image{edge, edge, 3, {}};
  for (int64_t i = 0; i < edge * edge * 3; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(random_word(1, static_cast<uint64_t>(i))));
  }
  const data::Scaling scaling{{0, 0, edge, edge}, 224, 224, {0, 0, 224, 224}, filter};
  for (auto _ : state) benchmark::DoNotOptimize(data::resize(image, scaling));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(Resize, bilinear, data::Filter::kBilinear)
    ->Arg(160)
    ->Arg(320)
    ->Arg(448)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Resize, bicubic, data::Filter::kBicubic)->Arg(320)->Unit(benchmark::kMicrosecond);

void Normalise(benchmark::State& state, const data::PixelKernels* kernels) {
  if (kernels == nullptr) return state.SkipWithError("not on this CPU");
  const std::vector<uint8_t> pixels(224 * 224 * 3, 100);
  std::vector<float> numbers(pixels.size());
  const float scale[3] = {0.017F, 0.0175F, 0.0174F}, shift[3] = {-2.1F, -2.03F, -1.8F};
  for (auto _ : state) {
    for (int64_t y = 0; y < 224; ++y) {
      kernels->normalise(pixels.data() + y * 224 * 3, 224, 3, scale, shift, 224 * 224,
                         numbers.data() + y * 224);
    }
    benchmark::DoNotOptimize(numbers.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(Normalise, plain, &data::plain_kernels())->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Normalise, avx512, data::avx512_kernels())->Unit(benchmark::kMicrosecond);

/// Random-resized-crop to 224, flip, normalise: bytes to numbers.
void TrainSample(benchmark::State& state) {
  const data::Transform transform{data::TransformOptions()};
  std::vector<float> numbers(static_cast<size_t>(transform.sample_size()));
  uint64_t i = 0;
  for (auto _ : state) {
    transform.train(files()[i % kImages], "bench", {1, 0, i}, numbers.data());
    ++i;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(TrainSample)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera
