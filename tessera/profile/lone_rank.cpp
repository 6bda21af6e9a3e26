// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/lone_rank.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "tessera/mesh/transport.h"
#include "tessera/plan/spans.h"
#include "tessera/profile/unit_passes.h"

namespace tessera::profile {
namespace {

class LoneTransport final : public mesh::Transport {
 public:
  LoneTransport(int64_t rank, int64_t size, std::string name)
      : rank_(rank), copies_(mesh::pretend_transport(rank, size)), name_(std::move(name)) {}

  mesh::Waiter all_gather(at::Tensor output, at::Tensor input) override {
    const TraceSpan span(measured_trace(), kMessageSpan, "all_gather");
    return copies_->all_gather(std::move(output), std::move(input));
  }
  mesh::Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    const TraceSpan span(measured_trace(), kMessageSpan, "all_to_all");
    return copies_->all_to_all(std::move(output), std::move(input));
  }
  mesh::Waiter exchange(at::Tensor output, at::Tensor input, const mesh::Splits& splits) override {
    const TraceSpan span(measured_trace(), kMessageSpan, "exchange");
    return copies_->exchange(std::move(output), std::move(input), splits);
  }
  /// This rank's row alone: a sum over ranks belongs to the message.
  std::optional<mesh::Waiter> reduce_scatter(const at::Tensor& output, const at::Tensor& input) override {
    const TraceSpan span(measured_trace(), kMessageSpan, "reduce_scatter");
    const at::NoGradGuard no_grad;
    const int64_t values = output.numel();
    at::Tensor(output).view({values}).copy_(input.view({-1}).narrow(0, rank_ * values, values));
    return mesh::Waiter{[] {}, [] { return true; }};
  }
  bool moves(at::DeviceType) const override { return true; }
  void abort() override {}
  const char* name() const override { return name_.c_str(); }

 private:
  int64_t rank_;
  std::shared_ptr<mesh::Transport> copies_;
  std::string name_;
};

}  // namespace

std::unique_ptr<mesh::Mesh> lone_rank(const plan::Plan& plan, const std::string& transport) {
  const auto make = [&](const std::string&, int64_t rank, int64_t size) -> std::shared_ptr<mesh::Transport> {
    return std::make_shared<LoneTransport>(rank, size, transport);
  };
  return mesh::Mesh::over(plan.world - 1, {{"stage", plan.world}}, make, plan::spans_of(plan));
}

}  // namespace tessera::profile
