#include <ATen/ATen.h>

#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

class PretendTransport : public Transport {
 public:
  PretendTransport(int64_t rank, int64_t size) : rank_(rank), size_(size) {}

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    output.view({size_, -1}).copy_(input.view({1, -1}).expand({size_, input.numel()}));
    return [] {};
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    // Every other rank would send what this rank holds for itself.
    output.view({size_, -1}).copy_(input.view({size_, -1}).narrow(0, rank_, 1).expand({size_, -1}));
    return [] {};
  }

  void abort() override {}

 private:
  int64_t rank_, size_;
};

}  // namespace

std::shared_ptr<Transport> pretend_transport(int64_t rank, int64_t size) {
  return std::make_shared<PretendTransport>(rank, size);
}

}  // namespace tessera::mesh
