// SPDX-License-Identifier: Apache-2.0
#include "tessera/cuda/graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

namespace tessera::cuda {
namespace {

class Graph : public device::DeviceGraph {
 public:
  explicit Graph(const Graph* beside)
      : pool_(beside != nullptr ? beside->pool_ : at::cuda::graph_pool_handle()) {}

  void record(const std::function<void()>& work) override {
    // What operations kept for the next pass like this one: its memory is the recording's from now on.
    c10::cuda::CUDACachingAllocator::emptyCache();
    try {
      // Of this thread: others, which read data, take page-locked memory meanwhile.
      graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  /// The allocators wait for a capture's end before they use freed memory again. A capture that an operation
  /// has spoiled ends with an error, before CUDAGraph has told them.
  void give_up() {
    const c10::DeviceIndex device = c10::cuda::current_device();
    at::HostAllocator& host = *at::getHostAllocator(at::kCUDA);
    const bool whole = ended([&] { graph_.capture_end(); });
    cudaGetLastError();  // or the next call would report it again
    ended([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_); });
    ended([&] { host.end_allocate_to_pool(pool_); });
    if (!ended([&] { graph_.pool(); })) {  // else its destructor gives the pool back
      ended([&] { c10::cuda::CUDACachingAllocator::releasePool(device, pool_); });
      ended([&] { host.release_pool(pool_); });
    }
    if (!whole) ended(release_generator);
  }

  /// A spoiled capture ends before CUDAGraph has told LibTorch's generator of random numbers, which then
  /// refuses all work outside of captures (attention asks it for a seed). The end of a capture that is whole
  /// tells it.
  static void release_generator() {
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    at::zeros({1}, at::TensorOptions(at::kFloat).device(at::kCUDA));  // CUDAGraph warns of empty graphs
    graph.capture_end();
  }

  /// What is over already refuses to end again; the error that matters is under way.
  template <typename Step>
  static bool ended(const Step& step) {
    try {
      step();
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }

  const c10::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<device::DeviceGraph> make_graph(const device::DeviceGraph* beside) {
  return std::make_unique<Graph>(static_cast<const Graph*>(beside));
}

}  // namespace tessera::cuda
