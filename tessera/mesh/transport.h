// Moves bytes between the ranks of one group. Implemented by Gloo (transport_gloo.cpp) and by the pretend
// ranks (transport_pretend.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace c10d {
class Store;
}

namespace tessera::mesh {

/// Waits for one operation; throws std::exception on failure or after the timeout.
using Waiter = std::function<void()>;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Waiter all_gather(at::Tensor output, at::Tensor input) = 0;
  /// Slice r of input goes to rank r; slice r of output comes from rank r. Equal slices.
  virtual Waiter all_to_all(at::Tensor output, at::Tensor input) = 0;
  /// Tells peers and background threads to give up; never waits.
  virtual void abort() = 0;
};

/// Gloo over TCP. `store`: seen by the group's ranks alone (a prefix store).
std::shared_ptr<Transport> gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          int64_t size, const std::string& interface_address,
                                          std::chrono::milliseconds timeout);

/// One process plays rank `rank` of `size`: the other ranks' contributions are copies of its own.
std::shared_ptr<Transport> pretend_transport(int64_t rank, int64_t size);

}  // namespace tessera::mesh
