// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/error.h"
#include "tessera/mesh/connections.h"
#include "tessera/mesh/gloo_fault.h"
#include "tessera/mesh/transport.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNever = std::chrono::hours(24 * 365);
constexpr milliseconds kUntilGivenUp{10'000};  // for an operation that nobody waits for any more
constexpr milliseconds kUntilLost{1'000};      // an operation whose connections have ended ends well before

/// Two groups of c10d, each with an order of its own, so that a reduction in pieces may go on whenever a
/// piece has arrived, whatever gathers other ranks have started meanwhile.
class GlooTransport : public Transport {
 public:
  // (More than 5 parameters: what Gloo's context is made of.)
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size,
                std::string interface_address, Patience patience, bool exchanges)
      : store_(std::move(store)),
        rank_(static_cast<int>(rank)),
        size_(static_cast<int>(size)),
        interface_address_(std::move(interface_address)),
        patience_(std::move(patience)) {
    // c10d's flight recorder is one per process, and groups on several threads (ranks as threads) race in it
    // (torch 2.11: its status map is written outside its lock). Someone who wants it can still set the
    // variable.
    static std::once_flag once;
    std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
    explain_faults_of_gloo();
    gathers_ = connect("gathers");
    if (exchanges) exchanges_ = connect("exchanges");
  }

  ~GlooTransport() override {
    const auto begin = std::chrono::steady_clock::now();
    for (Gloo* gloo : {&gathers_, &exchanges_}) {
      gloo->end([this, begin] {
        return aborted_ || *patience_.failed || std::chrono::steady_clock::now() - begin > kUntilGivenUp;
      });
    }
  }
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return gathers_.waiter(gathers_.backend->_allgather_base(output, input), patience_);
  }

  Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    std::vector<int64_t> equal_splits;
    return exchange(std::move(output), std::move(input), equal_splits, equal_splits);
  }

  Waiter exchange(at::Tensor output, at::Tensor input, const Splits& splits) override {
    std::vector<int64_t> sent = splits[static_cast<size_t>(rank_)], received = column(splits, rank_);
    return exchange(std::move(output), std::move(input), sent, received);
  }

  void abort() override {
    aborted_ = true;
    gathers_.connections->shut_down();
    exchanges_.connections->shut_down();
  }

  const char* name() const override { return "TCP"; }

 private:
  Waiter exchange(at::Tensor output, at::Tensor input, std::vector<int64_t>& sent,
                  std::vector<int64_t>& received) {
    // Connecting in mid-run would wait for run.timeout where a host has gone since the ranks met.
    if (!exchanges_.backend) exchanges_ = connect("exchanges");
    return exchanges_.waiter(exchanges_.backend->alltoall_base(output, input, received, sent), patience_);
  }

  /// A group of c10d. Gloo's time limits are disabled: they would expire while the process is stopped.
  /// wait_for() limits each operation.
  struct Gloo {
    c10::intrusive_ptr<c10d::ProcessGroupGloo> backend;
    std::shared_ptr<const Connections> connections = std::make_shared<Connections>();
    std::vector<c10::weak_intrusive_ptr<c10d::Work>> under_way = {};  // and some that have ended

    Waiter waiter(const c10::intrusive_ptr<c10d::Work>& work, const Patience& patience) {
      std::erase_if(under_way, has_ended);
      under_way.emplace_back(work);
      return {[work, patience, connections = connections] { wait_for(*work, patience, *connections); },
              [work] { return work->isCompleted(); }};
    }

    /// Lets the group go once its operations have ended. One that begins when its connections have just been
    /// shut down may never end (seen in an exchange: Gloo tells a buffer of a broken connection only where it
    /// knows that the buffer waits), and the group's destructor would wait for it: such a group, with its
    /// threads, stays until the process ends.
    void end(const std::function<bool()>& give_up) {
      if (!backend || all_end_before(give_up)) return;
      connections->shut_down();
      const auto begin = std::chrono::steady_clock::now();
      const auto is_lost = [begin] { return std::chrono::steady_clock::now() - begin > kUntilLost; };
      if (!all_end_before(is_lost)) (void)backend.release();
    }

   private:
    static bool has_ended(const c10::weak_intrusive_ptr<c10d::Work>& weak) {
      const auto work = weak.lock();
      return !work || work->isCompleted();
    }
    bool all_end_before(const std::function<bool()>& give_up) const {
      while (!std::ranges::all_of(under_way, has_ended)) {
        if (give_up()) return false;
        std::this_thread::sleep_for(milliseconds(1));
      }
      return true;
    }
  };

  static void wait_for(c10d::Work& work, const Patience& patience, const Connections& connections) {
    OperationWait time(patience);
    while (true) {
      try {
        work.wait(std::clamp(patience.timeout / 4, milliseconds(1), kBetweenLooks));
        return;
      } catch (const std::exception&) {
        if (work.isCompleted()) {  // in the meantime, or it failed
          work.wait();
          return;
        }
      }
      const std::string reason = reason_to_give_up(time, patience, connections);
      if (reason.empty()) continue;
      *patience.failed = true;
      connections.shut_down();  // ends the operation, which uses the caller's tensors
      throw std::runtime_error(reason);
    }
  }

  Gloo connect(const std::string& name) const {
    const Connections before = Connections::all();
    auto options = c10d::ProcessGroupGloo::Options::create(patience_.timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(interface_address_));
    options->threads = 2;  // operations under way at once
    Gloo gloo;
    gloo.backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(name, store_), rank_, size_, std::move(options));
    gloo.connections = std::make_shared<Connections>(Connections::opened(before, Connections::all()));
    if (gloo.connections->empty()) return gloo;  // /proc cannot be read: the time limits of Gloo count
    gloo.backend->setTimeout(kNever);
    gloo.connections->keep_alive();
    return gloo;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string interface_address_;
  Patience patience_;
  Gloo gathers_, exchanges_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

// (More than 5 parameters: what Gloo's context is made of.)
std::shared_ptr<Transport> gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                          int64_t size, const std::string& interface_address,
                                          const Patience& patience, bool exchanges) {
  return std::make_shared<GlooTransport>(store, rank, size, interface_address, patience, exchanges);
}

}  // namespace tessera::mesh
