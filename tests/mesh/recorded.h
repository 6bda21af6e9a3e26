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
  mesh::Movement movement;
  at::Tensor input, output;
};

/// By group ("world", "shard"), in the order in which they were started. One rank's thread uses it.
using Recording = std::map<std::string, std::deque<Exchange>>;

/// Talks as `real` does and keeps what was said.
class RecordingTransport : public mesh::Transport {
 public:
  RecordingTransport(std::shared_ptr<mesh::Transport> real, std::deque<Exchange>& kept)
      : real_(std::move(real)), kept_(kept) {}

  mesh::Waiter all_gather(at::Tensor output, at::Tensor input) override {
    return keep(mesh::Movement::kAllGather, output, input, real_->all_gather(output, input));
  }
  mesh::Waiter all_to_all(at::Tensor output, at::Tensor input) override {
    return keep(mesh::Movement::kAllToAll, output, input, real_->all_to_all(output, input));
  }
  void abort() override { real_->abort(); }

 private:
  mesh::Waiter keep(mesh::Movement movement, const at::Tensor& output, const at::Tensor& input,
                    mesh::Waiter waiter) {
    const size_t place = kept_.size();
    kept_.push_back({movement, input.clone(), {}});
    return {[this, place, output, wait = std::move(waiter.wait)] {
              wait();
              kept_[place].output = output.clone();
            },
            std::move(waiter.done)};
  }

  std::shared_ptr<mesh::Transport> real_;
  std::deque<Exchange>& kept_;
};

/// Answers each operation as the recording's next of the group. The pretended rank must give what the real
/// one gave, bit by bit.
inline mesh::Answer replay(std::deque<Exchange>& kept) {
  return [&kept](mesh::Movement movement, at::Tensor output, const at::Tensor& input) {
    ASSERT_FALSE(kept.empty()) << "more operations than were recorded";
    const Exchange next = std::move(kept.front());
    kept.pop_front();
    ASSERT_EQ(next.movement, movement);
    EXPECT_TRUE(next.input.equal(input.reshape(next.input.sizes()))) << "another contribution";
    output.copy_(next.output.view(output.sizes()));
  };
}

}  // namespace tessera::testing
