// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

/// Two groups of c10d, each with an order of its own, so that a reduction in pieces may go on whenever a
/// piece has arrived, whatever gathers other ranks have started meanwhile.
class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size,
                std::string interface_address, std::chrono::milliseconds timeout)
      : store_(std::move(store)),
        rank_(static_cast<int>(rank)),
        size_(static_cast<int>(size)),
        interface_address_(std::move(interface_address)),
        timeout_(timeout) {
    // c10d's flight recorder is one per process, and groups on several threads (ranks as threads) race in it
    // (torch 2.11: its status map is written outside its lock). Someone who wants it can still set the
    // variable.
    static std::once_flag once;
    std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
    gathers_ = connect("gathers");
  }

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return waiter(gathers_->_allgather_base(output, input));
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    if (!exchanges_) exchanges_ = connect("exchanges");  // many groups never exchange
    std::vector<int64_t> equal_splits;
    return waiter(exchanges_->alltoall_base(output, input, equal_splits, equal_splits));
  }

  void abort() override {
    gathers_->abort();
    if (exchanges_) exchanges_->abort();
  }

  const char* name() const override { return "TCP"; }

 private:
  using Backend = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  Backend connect(const std::string& name) const {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(interface_address_));
    options->threads = 2;  // operations under way at once
    return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                                       rank_, size_, std::move(options));
  }

  static Waiter waiter(const c10::intrusive_ptr<c10d::Work>& work) {
    return {[work] { work->wait(); }, [work] { return work->isCompleted(); }};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string interface_address_;
  std::chrono::milliseconds timeout_;
  Backend gathers_, exchanges_;
};

}  // namespace

std::shared_ptr<Transport> gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          int64_t size, const std::string& interface_address,
                                          std::chrono::milliseconds timeout) {
  return std::make_shared<GlooTransport>(store, rank, size, interface_address, timeout);
}

}  // namespace tessera::mesh
