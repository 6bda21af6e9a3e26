// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "tessera/mesh/group.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

class PretendTransport : public Transport {
 public:
  PretendTransport(int64_t rank, int64_t size, Answer answer)
      : rank_(rank), size_(size), answer_(std::move(answer)) {}

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return answered(Movement::kAllGather, output, input);
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return answered(Movement::kAllToAll, output, input);
  }

  Waiter send(at::Tensor) override { return ended(); }
  Waiter receive(at::Tensor message) override {
    message.zero_();
    return ended();
  }
  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& /*splits*/) override {
    if (answer_) {
      answer_(Movement::kExchange, output, input);
    } else if (input.numel() == 0) {
      output.zero_();
    } else {
      const int64_t times = (output.numel() + input.numel() - 1) / input.numel();
      output.copy_(input.repeat({times}).narrow(0, 0, output.numel()));
    }
    return ended();
  }

  void abort() override {}
  const char* name() const override { return kPretended; }

 private:
  static Waiter ended() {
    return {[] {}, [] { return true; }};
  }

  Waiter answered(Movement movement, const at::Tensor& output, const at::Tensor& input) const {
    const at::Tensor rows = output.view({size_, -1});
    if (answer_) {
      answer_(movement, rows, input);
    } else if (movement == Movement::kAllGather) {
      rows.copy_(input.view({1, -1}).expand({size_, input.numel()}));
    } else {
      // Every other rank would send what this rank holds for itself.
      rows.copy_(input.view({size_, -1}).narrow(0, rank_, 1).expand({size_, -1}));
    }
    return ended();
  }

  int64_t rank_, size_;
  Answer answer_;
};

}  // namespace

std::shared_ptr<Transport> pretend_transport(int64_t rank, int64_t size, Answer answer) {
  return std::make_shared<PretendTransport>(rank, size, std::move(answer));
}

}  // namespace tessera::mesh
