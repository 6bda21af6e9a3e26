// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, without LibTorch.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/loop/world.h"

namespace tessera::loop {

/// What the ranks of one ThreadWorld share.
struct ThreadRanks {
  explicit ThreadRanks(int64_t size) : barrier(size), texts(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<std::string> texts;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(int64_t rank, std::shared_ptr<ThreadRanks> ranks) : rank_(rank), ranks_(std::move(ranks)) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_->texts.size()); }
  std::vector<std::string> gather(const std::string& text, const std::string&) override {
    ranks_->texts[static_cast<size_t>(rank_)] = text;
    ranks_->barrier.arrive_and_wait();
    std::vector<std::string> all = ranks_->texts;
    ranks_->barrier.arrive_and_wait();
    return all;
  }
  void sum(std::span<double> values, const std::string& what) override {
    const std::string mine(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    const std::vector<std::string> all = gather(mine, what);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0;
      for (const std::string& bytes : all) values[i] += reinterpret_cast<const double*>(bytes.data())[i];
    }
  }
  double wait_seconds() const override { return 0; }
  std::unique_ptr<World> another(const std::string&) override {
    if (rank_ == 0) next_ = std::make_shared<ThreadRanks>(size());
    const auto* here = rank_ == 0 ? &next_ : nullptr;
    const std::string address(reinterpret_cast<const char*>(&here), sizeof here);
    const std::vector<std::string> all = gather(address, "another");
    const std::shared_ptr<ThreadRanks>* there = nullptr;
    std::copy_n(all[0].data(), sizeof there, reinterpret_cast<char*>(&there));
    auto world = std::make_unique<ThreadWorld>(rank_, *there);
    ranks_->barrier.arrive_and_wait();  // all have it
    return world;
  }

 private:
  int64_t rank_;
  std::shared_ptr<ThreadRanks> ranks_, next_;
};

/// Runs `body` as every rank of `size`; rethrows the first rank's error. A body that fails must fail on all.
inline void run_thread_ranks(int64_t size, const std::function<void(World&)>& body) {
  const auto ranks = std::make_shared<ThreadRanks>(size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadWorld world(rank, ranks);
        body(world);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (errors[0]) std::rethrow_exception(errors[0]);
}

}  // namespace tessera::loop
