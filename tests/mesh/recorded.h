// SPDX-License-Identifier: Apache-2.0
// What the ranks of a real run sent one of them, kept, and given again to a pretended rank.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/transport.h"

namespace tessera::testing {

/// One operation: what this rank gave and what it got from all.
struct Exchange {
  at::Tensor input, output;
};

/// In the order in which they were started. How gathers and exchanges mix depends on when messages arrive.
using Conversation = std::map<mesh::Movement, std::deque<Exchange>>;

/// By key of the group (mesh::TransportMaker). One rank's thread uses it.
using Recording = std::map<std::string, Conversation>;

/// Talks as `real` does and keeps what was said.
class RecordingTransport : public mesh::Transport {
 public:
  RecordingTransport(std::shared_ptr<mesh::Transport> real, Conversation& kept)
      : real_(std::move(real)), kept_(kept) {}

  mesh::Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return keep(mesh::Movement::kAllGather, output, input, real_->all_gather(output, input));
  }
  mesh::Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return keep(mesh::Movement::kAllToAll, output, input, real_->all_to_all(output, input));
  }
  mesh::Waiter exchange(at::Tensor output, at::Tensor input, const mesh::Splits& splits) override {
    return keep(mesh::Movement::kExchange, output, input, real_->exchange(output, input, splits));
  }
  void abort() override { real_->abort(); }
  const char* name() const override { return real_->name(); }

 private:
  mesh::Waiter keep(mesh::Movement movement, const at::Tensor& output, const at::Tensor& input,
                    mesh::Waiter waiter) {
    Exchange& exchange = kept_[movement].emplace_back(Exchange{input.clone(), {}});
    return {[&exchange, output, wait = std::move(waiter.wait)] {
              wait();
              exchange.output = output.clone();
            },
            std::move(waiter.done)};
  }

  std::shared_ptr<mesh::Transport> real_;
  Conversation& kept_;  // references into its queues stay good while they grow
};

/// Answers each operation as the recording's next of the group. The pretended rank must give what the real
/// one gave, bit by bit.
inline mesh::Answer replay(Conversation& kept) {
  return [&kept](mesh::Movement movement, at::Tensor output, const at::Tensor& input) {
    auto& line = kept[movement];
    ASSERT_FALSE(line.empty()) << "more operations than were recorded";
    const Exchange next = std::move(line.front());
    line.pop_front();
    EXPECT_TRUE(next.input.equal(input.reshape(next.input.sizes()))) << "another contribution";
    output.copy_(next.output.view(output.sizes()));
  };
}

}  // namespace tessera::testing
