#include <ATen/ATen.h>

#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

class GlooTransport : public Transport {
 public:
  GlooTransport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                const std::string& interface_address, std::chrono::milliseconds timeout) {
    // c10d's flight recorder is one per process, and groups on several threads (ranks as threads) race in it
    // (torch 2.11: its status map is written outside its lock). Someone who wants it can still set the
    // variable.
    static std::once_flag once;
    std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(interface_address));
    options->threads = 2;  // a gather and a reduction may be under way at once
    backend_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(rank),
                                                           static_cast<int>(size), std::move(options));
  }

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return waiter(backend_->_allgather_base(output, input));
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    std::vector<int64_t> equal_splits;
    return waiter(backend_->alltoall_base(output, input, equal_splits, equal_splits));
  }

  void abort() override { backend_->abort(); }

 private:
  static Waiter waiter(c10::intrusive_ptr<c10d::Work> work) {
    return [work = std::move(work)] { work->wait(); };
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
};

}  // namespace

std::shared_ptr<Transport> gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          int64_t size, const std::string& interface_address,
                                          std::chrono::milliseconds timeout) {
  return std::make_shared<GlooTransport>(store, rank, size, interface_address, timeout);
}

}  // namespace tessera::mesh
