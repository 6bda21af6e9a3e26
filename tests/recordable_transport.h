// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, whose collectives are operations of LibTorch's dispatcher: a recording of
// operation_graph.h holds them, as a CUDA graph holds NCCL's kernels, and a replay does them again. Included
// by one file of a test program.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/base/on_threads.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/transport.h"

namespace tessera::testing {

/// Where the ranks of a group hand each other tensors. A rank that waits for more than 20 s throws.
class Meeting {
 public:
  explicit Meeting(int64_t size) : given_(static_cast<size_t>(size)) {}

  /// Calls body with every rank's tensor; nobody's changes before all ranks have left.
  void meet(int64_t rank, const at::Tensor& mine,
            const std::function<void(const std::vector<at::Tensor>&)>& body) {
    given_[static_cast<size_t>(rank)] = mine;
    wait();
    body(given_);
    wait();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    if (++arrived_ == given_.size()) {
      arrived_ = 0;
      ++turn_;
      everyone_is_here_.notify_all();
      return;
    }
    const uint64_t turn = turn_;
    TORCH_CHECK(everyone_is_here_.wait_for(lock, std::chrono::seconds(20), [&] { return turn_ != turn; }),
                "another rank did not come");
  }

  std::mutex mutex_;
  std::condition_variable everyone_is_here_;
  size_t arrived_ = 0;
  uint64_t turn_ = 0;
  std::vector<at::Tensor> given_;  // by rank
};

inline Meeting& meeting_of(int64_t address) { return *reinterpret_cast<Meeting*>(address); }

inline void gather(const at::Tensor& output, const at::Tensor& input, int64_t meeting, int64_t rank) {
  meeting_of(meeting).meet(rank, input, [&](const std::vector<at::Tensor>& all) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : all) flat.push_back(one.reshape({-1}));
    at::Tensor(output).view({-1}).copy_(at::cat(flat));
  });
}

/// output [n] <- sum over the ranks, rank 0 first, of their row `rank` of input [ranks, n].
inline void scatter_sum(const at::Tensor& output, const at::Tensor& input, int64_t meeting, int64_t rank) {
  meeting_of(meeting).meet(rank, input, [&](const std::vector<at::Tensor>& all) {
    at::Tensor sum = at::zeros_like(output);
    for (const at::Tensor& one : all)
      sum.add_(one.reshape({-1, output.numel()})[rank].to(output.scalar_type()));
    at::Tensor(output).copy_(sum);
  });
}

class RecordableTransport : public mesh::Transport {
 public:
  RecordableTransport(std::shared_ptr<Meeting> meeting, int64_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  mesh::Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return call("tessera_test::gather", output, input);
  }
  mesh::Waiter all_to_all(at::Tensor, at::Tensor) override {
    TORCH_CHECK(false, "reductions go through reduce_scatter");
  }
  mesh::Waiter exchange(at::Tensor, at::Tensor, const mesh::Splits&) override {
    TORCH_CHECK(false, "ranks hold equal numbers of samples");
  }
  std::optional<mesh::Waiter> reduce_scatter(const at::Tensor& output, const at::Tensor& input) override {
    return call("tessera_test::scatter_sum", output, input);
  }
  void abort() override {}
  const char* name() const override { return "threads"; }

 private:
  mesh::Waiter call(const char* name, const at::Tensor& output, const at::Tensor& input) const {
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow(name, "")
                        .typed<void(const at::Tensor&, const at::Tensor&, int64_t, int64_t)>();
    op.call(output, input, reinterpret_cast<int64_t>(meeting_.get()), rank_);
    return {[] {}, [] { return true; }};
  }

  std::shared_ptr<Meeting> meeting_;
  int64_t rank_;
};

/// Runs body(mesh) on every rank of one axis "shard"; rethrows the first rank's exception.
inline void run_recordable_ranks(int64_t world, const std::function<void(mesh::Mesh&)>& body) {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  run_on_threads(world, [&](int64_t rank) {
    const auto mesh =
        mesh::Mesh::over(rank, {{"shard", world}}, [&](const std::string& line, int64_t, int64_t size) {
          const std::lock_guard lock(mutex);
          auto& meeting = meetings[line];
          if (!meeting) meeting = std::make_shared<Meeting>(size);
          return std::make_shared<RecordableTransport>(meeting, rank);
        });
    body(*mesh);
    mesh->world().barrier("end of test");
  });
}

}  // namespace tessera::testing

TORCH_LIBRARY(tessera_test, library) {
  library.def("gather(Tensor(a!) output, Tensor input, int meeting, int rank) -> ()");
  library.def("scatter_sum(Tensor(a!) output, Tensor input, int meeting, int rank) -> ()");
  library.impl("gather", c10::DispatchKey::CPU, tessera::testing::gather);
  library.impl("scatter_sum", c10::DispatchKey::CPU, tessera::testing::scatter_sum);
}
