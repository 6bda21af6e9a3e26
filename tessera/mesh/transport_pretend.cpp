// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <thread>

#include "tessera/mesh/group.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

using Clock = std::chrono::steady_clock;

class PretendTransport : public Transport {
 public:
  PretendTransport(int64_t rank, int64_t size, Answer answer, std::shared_ptr<PretendedLink> link)
      : rank_(rank), size_(size), answer_(std::move(answer)), link_(std::move(link)) {}

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return answered(Movement::kAllGather, output, input);
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return answered(Movement::kAllToAll, output, input);
  }

  Waiter send(at::Tensor) override { return arrived(0); }
  Waiter receive(at::Tensor message) override {
    message.zero_();
    return arrived(static_cast<int64_t>(message.nbytes()));
  }
  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& /*splits*/) override {
    if (answer_) {
      answer_(Movement::kExchange, output, input);
    } else if (input.numel() == 0) {
      output.zero_();
    } else {
      // Without a tensor in between: the memory that a rank needs is to be that of a real one.
      for (int64_t begin = 0; begin < output.numel(); begin += input.numel()) {
        const int64_t values = std::min(input.numel(), output.numel() - begin);
        output.narrow(0, begin, values).copy_(input.narrow(0, 0, values));
      }
    }
    return arrived(static_cast<int64_t>(output.nbytes()));
  }

  bool moves(at::DeviceType) const override { return true; }
  void abort() override {}
  const char* name() const override { return kPretended; }

 private:
  /// Ends when so many bytes have come.
  Waiter arrived(int64_t bytes) const {
    if (link_ == nullptr || bytes == 0) return {[] {}, [] { return true; }};
    const auto end = link_->arrival(bytes);
    return {[end] { std::this_thread::sleep_until(end); }, [end] { return Clock::now() >= end; }};
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
    return arrived(static_cast<int64_t>(output.nbytes()) / size_ * (size_ - 1));
  }

  int64_t rank_, size_;
  Answer answer_;
  std::shared_ptr<PretendedLink> link_;
};

}  // namespace

Clock::time_point PretendedLink::arrival(int64_t bytes) {
  const auto time = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const double rate = network_.bytes_per_second;
  const std::lock_guard lock(mutex_);
  free_ = std::max(free_, Clock::now()) + time(rate > 0 ? static_cast<double>(bytes) / rate : 0);
  return free_ + time(network_.latency);
}

std::shared_ptr<Transport> pretend_transport(int64_t rank, int64_t size, Answer answer,
                                             std::shared_ptr<PretendedLink> link) {
  return std::make_shared<PretendTransport>(rank, size, std::move(answer), std::move(link));
}

}  // namespace tessera::mesh
