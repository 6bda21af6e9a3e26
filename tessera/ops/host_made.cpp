// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/host_made.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

// Of the process: autograd differentiates (and computes again) on threads of the device.
std::atomic<HostNumbers*> active = nullptr;
// Of the thread: on a CPU autograd uses the thread that asks, and other threads may be other ranks.
thread_local HostNumbers* active_of_thread = nullptr;

HostNumbers* numbers_of_pass() { return active_of_thread != nullptr ? active_of_thread : active.load(); }

}  // namespace

// From page-locked memory, or the copy would wait for the device.
at::Tensor on_device(const at::Tensor& values, at::Device device) {
  return device.is_cuda() ? values.pin_memory().to(device, /*non_blocking=*/true) : values.to(device);
}

class HostNumbers::Active {
 public:
  Active(HostNumbers* numbers, bool gives) : of_thread_(numbers->of_thread_) {
    HostNumbers* none = nullptr;
    const bool alone =
        of_thread_ ? active_of_thread == nullptr : active.compare_exchange_strong(none, numbers);
    TESSERA_CHECK(alone, "two passes are recorded at once");
    if (of_thread_) active_of_thread = numbers;
    numbers->gives_ = gives;
    numbers->next_ = 0;
  }
  ~Active() {
    if (of_thread_) {
      active_of_thread = nullptr;
    } else {
      active = nullptr;
    }
  }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  bool of_thread_;
};

bool host_made_is_kept() { return numbers_of_pass() != nullptr; }

at::Tensor host_made(at::Device device, MakeNumbers make) {
  HostNumbers* const numbers = numbers_of_pass();
  return numbers != nullptr ? numbers->next(device, std::move(make)) : on_device(make(), device);
}

at::Tensor HostNumbers::next(at::Device device, MakeNumbers make) {
  if (gives_) {
    TESSERA_CHECK(next_ < numbers_.size(), "a recorded pass asks for more of the host than the one before");
    return numbers_[next_++].there;
  }
  const at::Tensor there = on_device(make(), device);
  numbers_.push_back({std::move(make), there});
  return there;
}

void HostNumbers::collect(const std::function<void()>& pass) {
  numbers_.clear();
  const Active collecting(this, /*gives=*/false);
  pass();
}

void HostNumbers::give(const std::function<void()>& pass) {
  const Active giving(this, /*gives=*/true);
  pass();
  TESSERA_CHECK_EQ(next_, numbers_.size());
}

void HostNumbers::renew() {
  const at::NoGradGuard no_grad;
  for (Numbers& one : numbers_) one.there.copy_(on_device(one.make(), one.there.device()));
}

}  // namespace tessera::ops
