// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/host_values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::device {
namespace {

// Of the process: autograd differentiates (and computes again) on threads of the device.
std::atomic<HostValues*> active = nullptr;
// Of the thread: on a CPU autograd uses the thread that asks, and other threads may be other ranks.
thread_local HostValues* active_of_thread = nullptr;

HostValues* numbers_of_pass() { return active_of_thread != nullptr ? active_of_thread : active.load(); }

}  // namespace

// From page-locked memory, or the copy would wait for the device.
at::Tensor on_device(const at::Tensor& values, at::Device device) {
  return device.is_cuda() ? values.pin_memory().to(device, /*non_blocking=*/true) : values.to(device);
}

class HostValues::Active {
 public:
  Active(HostValues* numbers, bool gives) : of_thread_(numbers->of_thread_) {
    HostValues* none = nullptr;
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

bool host_values_are_kept() { return numbers_of_pass() != nullptr; }

at::Tensor host_values(at::Device device, MakeValues make) {
  HostValues* const numbers = numbers_of_pass();
  return numbers != nullptr ? numbers->next(device, std::move(make)) : on_device(make(), device);
}

at::Tensor HostValues::next(at::Device device, MakeValues make) {
  if (gives_) {
    TESSERA_CHECK(next_ < numbers_.size(), "a recorded pass asks for more of the host than the one before");
    return numbers_[next_++].there;
  }
  const at::Tensor there = on_device(make(), device);
  numbers_.push_back({std::move(make), there});
  return there;
}

void HostValues::collect(const std::function<void()>& pass) {
  numbers_.clear();
  const Active collecting(this, /*gives=*/false);
  pass();
}

void HostValues::give(const std::function<void()>& pass) {
  const Active giving(this, /*gives=*/true);
  pass();
  TESSERA_CHECK_EQ(next_, numbers_.size());
}

void HostValues::renew() {
  const at::NoGradGuard no_grad;
  for (Numbers& one : numbers_) one.there.copy_(on_device(one.make(), one.there.device()));
}

}  // namespace tessera::device
