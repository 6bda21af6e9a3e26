// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <utility>

#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

class StagedTransport : public Transport {
 public:
  StagedTransport(std::shared_ptr<Transport> host, at::DeviceType type)
      : host_(std::move(host)), type_(type) {}

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return staged(std::move(output), std::move(input),
                  [](Transport& host, auto&... tensors) { return host.all_gather(tensors...); });
  }
  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return staged(std::move(output), std::move(input),
                  [](Transport& host, auto&... tensors) { return host.all_to_all(tensors...); });
  }
  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& splits) override {
    return staged(std::move(output), std::move(input),
                  [&splits](Transport& host, auto&... tensors) { return host.exchange(tensors..., splits); });
  }
  Waiter send(at::Tensor message) override {
    return host_->send(message.device().type() == type_ ? message.to(at::kCPU) : message);
  }
  Waiter receive(at::Tensor message) override {
    return staged(message, message.new_empty({0}),
                  [](Transport& host, auto& output, auto& /*nothing*/) { return host.receive(output); });
  }
  bool moves(at::DeviceType type) const override { return type == type_ || host_->moves(type); }
  void abort() override { host_->abort(); }
  const char* name() const override { return "the host's memory, for GPUs that ranks share"; }

 private:
  /// `start`: (host, output, input) -> Waiter.
  template <typename Start>
  Waiter staged(at::Tensor output, at::Tensor input, const Start& start) {
    if (input.device().type() != type_) return start(*host_, output, input);
    // The copy waits for what the computing stream has queued so far.
    const at::Tensor sent = input.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor received = at::empty(output.sizes(), output.options().device(at::kCPU));
    const Waiter on_host = start(*host_, received, sent);
    // As on a device's stream (transport.h), it never says that it is done before the wait.
    return {[on_host, sent, received, output] {
              on_host.wait();
              output.copy_(received);
            },
            [] { return false; }};
  }

  std::shared_ptr<Transport> host_;
  at::DeviceType type_;
};

}  // namespace

std::shared_ptr<Transport> staged_transport(std::shared_ptr<Transport> host, at::DeviceType type) {
  return std::make_shared<StagedTransport>(std::move(host), type);
}

}  // namespace tessera::mesh
