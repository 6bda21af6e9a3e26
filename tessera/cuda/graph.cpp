#include "tessera/cuda/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace tessera::cuda {
namespace {

class Graph : public ops::DeviceGraph {
 public:
  void record(const std::function<void()>& work) override {
    // What operations kept for the next pass like this one: its memory is the recording's from now on.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Of this thread: others, which read data, take page-locked memory meanwhile.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      end_failed_capture();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  /// The error that matters is under way already.
  void end_failed_capture() {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
      cudaGetLastError();  // or the next call would report it again
    }
  }

  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<ops::DeviceGraph> make_graph() { return std::make_unique<Graph>(); }

}  // namespace tessera::cuda
