// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/warn.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

class DeviceTransport : public Transport {
 public:
  DeviceTransport(std::shared_ptr<Transport> host, c10::intrusive_ptr<c10d::Store> store, at::DeviceType type,
                  BackendMaker make)
      : host_(std::move(host)), store_(std::move(store)), type_(type), make_(std::move(make)) {}

  /// After the group's last collective; a broken group is not destroyed (connect() of eager/session.h).
  ~DeviceTransport() override {
    for (const Lane* lane : {&gathers_, &exchanges_}) {
      if (!lane->backend) continue;
      try {
        lane->backend->shutdown();  // or NCCL warns of leaked resources
      } catch (const std::exception& error) {
        warn(concat("[mesh.device] the group did not end properly: ", error.what()));
      }
    }
  }
  DeviceTransport(const DeviceTransport&) = delete;
  DeviceTransport& operator=(const DeviceTransport&) = delete;

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    if (input.device().type() != type_) return host_->all_gather(output, input);
    return on_stream(backend(gathers_, "gathers").allgather_base(output, input));
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    if (input.device().type() != type_) return host_->all_to_all(output, input);
    std::vector<int64_t> equal_splits;
    return on_stream(backend(exchanges_, "exchanges").all_to_all(output, input, equal_splits, equal_splits));
  }

  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& splits) override {
    if (input.device().type() != type_) return host_->exchange(output, input, splits);
    const Lane& lane = backend(exchanges_, "exchanges");
    const int64_t rank = lane.backend->getRank();
    std::vector<int64_t> sent = splits[static_cast<size_t>(rank)], received = column(splits, rank);
    return on_stream(lane.all_to_all(output, input, received, sent));
  }

  Waiter send(at::Tensor message) override {
    if (message.device().type() != type_) return host_->send(message);
    return exchange(message.new_empty({0}), message, {{0, message.numel()}, {0, 0}});
  }

  Waiter receive(at::Tensor message) override {
    if (message.device().type() != type_) return host_->receive(message);
    return exchange(message, message.new_empty({0}), {{0, message.numel()}, {0, 0}});
  }

  bool moves(at::DeviceType type) const override { return type == type_ || (host_ && host_->moves(type)); }

  void abort() override {
    if (host_) host_->abort();
    for (const Lane* lane : {&gathers_, &exchanges_}) {
      if (lane->backend) lane->backend->abort();
    }
  }

  const char* name() const override { return "NCCL"; }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  /// Gathers and exchanges each have an order, and a backend, of their own.
  struct Lane {
    c10::intrusive_ptr<c10d::Backend> backend;

    Work allgather_base(at::Tensor& output, at::Tensor& input) const {
      return backend->_allgather_base(output, input);
    }
    Work all_to_all(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                    std::vector<int64_t>& sent) const {
      return backend->alltoall_base(output, input, received, sent);
    }
  };

  /// Many groups never exchange, and one that moves control messages alone needs no backend at all.
  const Lane& backend(Lane& lane, const char* name) const {
    if (!lane.backend) lane.backend = make_(c10::make_intrusive<c10d::PrefixStore>(name, store_));
    return lane;
  }

  // See Note [Ended on a stream].
  static Waiter on_stream(const Work& work) {
    return {[work] { work->wait(); }, [] { return false; }};
  }

  std::shared_ptr<Transport> host_;
  c10::intrusive_ptr<c10d::Store> store_;
  at::DeviceType type_;
  BackendMaker make_;
  Lane gathers_, exchanges_;
};

}  // namespace

std::shared_ptr<Transport> device_transport(std::shared_ptr<Transport> host,
                                            const c10::intrusive_ptr<c10d::Store>& store, at::DeviceType type,
                                            BackendMaker make) {
  return std::make_shared<DeviceTransport>(std::move(host), store, type, std::move(make));
}

}  // namespace tessera::mesh
