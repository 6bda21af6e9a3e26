// SPDX-License-Identifier: Apache-2.0
// Moves bytes between the ranks of one group. Implemented by Gloo (transport_gloo.cpp), through memory that
// the ranks of one host share (transport_shared.cpp), by backends of a device (transport_device.cpp), through
// the host where ranks share a GPU (transport_staged.cpp) and by the pretend ranks (transport_pretend.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tessera/launch/pretended_network.h"
#include "tessera/mesh/pending.h"
#include "tessera/mesh/row_shares.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace tessera::mesh {

/// Every rank starts the gathers in one order and the exchanges in one order; the two do not wait for each
/// other. Tensors live until the operation has ended.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Waiter all_gather(at::Tensor output, at::Tensor input) = 0;
  /// Slice r of input goes to rank r; slice r of output comes from rank r. Equal slices.
  virtual Waiter all_to_all(at::Tensor output, at::Tensor input) = 0;
  /// all_to_all in slices of any sizes, in its order: splits[i][j] values go from rank i to rank j. Both
  /// tensors are flat and have as many values as that is. A rank's slice for itself is copied.
  virtual Waiter exchange(at::Tensor output, at::Tensor input, const Splits& splits) = 0;
  /// An exchange whose output [n] is the sum of what comes, rank 0's first, in its own dtype; input [ranks,
  /// n]. Unset, on every rank alike, where a transport only moves bytes.
  virtual std::optional<Waiter> reduce_scatter(const at::Tensor& output, const at::Tensor& input) {
    return std::nullopt;
  }
  /// Of two ranks of which rank 0 sends and rank 1 receives: messages come in the order in which they were
  /// sent. 1-D bytes of the same length on both. A sent tensor may be changed when the operation has ended.
  virtual Waiter send(at::Tensor message);
  virtual Waiter receive(at::Tensor message);
  /// The operation that this thread starts next belongs to a collective of this label; ranks whose labels
  /// differ are in different collectives. A transport may ignore it.
  virtual void label_next(uint32_t /*label*/) {}
  /// May the tensors given to it lie on devices of this type?
  virtual bool moves(at::DeviceType type) const { return type == at::kCPU; }
  /// Tells peers and background threads to give up; never waits.
  virtual void abort() = 0;
  /// "TCP", "shared memory", "NCCL", "pretended".
  virtual const char* name() const = 0;
};

/// How long an operation may wait for other ranks. Time in which this process is stopped does not count.
struct Patience {
  std::chrono::milliseconds timeout{600'000};
  /// Counts what the other ranks have done; a wait in whose second half it grows begins anew. May be empty.
  std::function<int64_t()> progress_of_others = {};
  /// Shared by all groups of a mesh. Once an operation has failed, every other one gets 10 s more at most.
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
};

/// Gloo over TCP. `store`: seen by the group's ranks alone (a prefix store). Connecting takes
/// `patience.timeout` at most. An operation fails at once where the host of a rank is gone (Connections).
/// `exchanges`: connect for all_to_all as well; else its first call does.
std::shared_ptr<Transport> gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          int64_t size, const std::string& interface_address,
                                          const Patience& patience, bool exchanges = false);

/// Messages from rank 0 to rank 1 of two ranks over TCP. `store`: seen by the two alone. Connecting takes
/// `patience.timeout` at most. A message is sent when the kernel has it: that needs the receiver only where
/// much is under way.
std::shared_ptr<Transport> link_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          const std::string& interface_address, const Patience& patience);

class SharedTransports;

/// Through memory, where all ranks of the group run on one host and each of them wants it; else null, on
/// every rank alike. Collective. `all`: one for each mesh.
std::shared_ptr<Transport> shared_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                            int64_t size, bool wanted, const Patience& patience,
                                            const std::shared_ptr<SharedTransports>& all);

/// Makes a backend of c10d for the same ranks over a store of its own.
using BackendMaker =
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store)>;

/// Tensors on devices of `type` travel through backends of theirs (NCCL), all others through `host`. Local.
///
/// Note [Ended on a stream]: such an operation runs on a stream of its own, behind what the computing stream
/// had to do when it started, and "wait" lets the computing stream wait for it, not this thread. It never
/// says that it is done before: pieces of a reduction must start at the same place of every rank's program,
/// not when timing has it so, or kernels of two backends could wait for each other across ranks.
std::shared_ptr<Transport> device_transport(std::shared_ptr<Transport> host,
                                            const c10::intrusive_ptr<c10d::Store>& store, at::DeviceType type,
                                            BackendMaker make);

/// Tensors on devices of `type` are copied to the host, travel through `host`, and are copied back: for ranks
/// that share a GPU, which NCCL refuses. The calling thread waits for the device. Local.
std::shared_ptr<Transport> staged_transport(std::shared_ptr<Transport> host, at::DeviceType type);

enum class Movement { kAllGather, kAllToAll, kExchange };

/// Fills `output` [size, n] (flat in an exchange) with what every rank would have sent; `input` is what this
/// rank gave.
using Answer = std::function<void(Movement movement, at::Tensor output, const at::Tensor& input)>;

/// The link through which a pretended rank gets its messages. Any thread.
class PretendedLink {
 public:
  explicit PretendedLink(const launch::PretendedNetwork& network) : network_(network) {}
  /// When a message has come that starts now.
  std::chrono::steady_clock::time_point arrival(int64_t bytes);

 private:
  const launch::PretendedNetwork network_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_ = {};  // the link has carried what was started
};

/// One process plays rank `rank` of `size`. Without `answer` the other ranks' contributions are copies of its
/// own, in an exchange repeated as often as it takes. They come through `link`; null: at once.
std::shared_ptr<Transport> pretend_transport(int64_t rank, int64_t size, Answer answer = {},
                                             std::shared_ptr<PretendedLink> link = nullptr);

}  // namespace tessera::mesh
