// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/kernel_times.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/eager/device.h"

namespace tessera::profile {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType, torch::profiler::impl::ProfilerConfig,
    torch::profiler::impl::ProfilerState;

class Sums {
 public:
  void add(const std::string& name, double seconds, int64_t calls = 1) {
    KernelTime& sum = by_name_[name];
    sum.name = name;
    sum.calls += calls;
    sum.seconds += seconds;
  }
  std::vector<KernelTime> longest_first() const {
    std::vector<KernelTime> all;
    for (const auto& [name, sum] : by_name_) all.push_back(sum);
    std::ranges::stable_sort(all, std::greater<>(), &KernelTime::seconds);
    return all;
  }

 private:
  std::map<std::string, KernelTime> by_name_;
};

double seconds_of(const profiler::KinetoEvent& event) {
  return static_cast<double>(event.durationNs()) / 1e9;
}

/// An operation's time without that of the operations that begin and end inside it on its thread.
std::vector<KernelTime> of_operations(std::vector<const profiler::KinetoEvent*> events) {
  std::ranges::stable_sort(events, [](const auto* a, const auto* b) {
    if (a->startThreadId() != b->startThreadId()) return a->startThreadId() < b->startThreadId();
    if (a->startNs() != b->startNs()) return a->startNs() < b->startNs();
    return a->endNs() > b->endNs();
  });
  Sums sums;
  std::vector<const profiler::KinetoEvent*> around;
  for (const profiler::KinetoEvent* event : events) {
    while (!around.empty() && (around.back()->startThreadId() != event->startThreadId() ||
                               around.back()->endNs() <= event->startNs())) {
      around.pop_back();
    }
    if (!around.empty()) sums.add(around.back()->name(), -seconds_of(*event), 0);
    sums.add(event->name(), seconds_of(*event));
    around.push_back(event);
  }
  return sums.longest_first();
}

std::vector<KernelTime> of_kernels(const std::vector<const profiler::KinetoEvent*>& events) {
  Sums sums;
  for (const profiler::KinetoEvent* event : events) sums.add(event->name(), seconds_of(*event));
  return sums.longest_first();
}

}  // namespace

std::vector<KernelTime> kernel_times(c10::Device device, const std::function<void()>& work) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities = {ActivityType::CUDA};
  // Its log would report as an error that a CPU has no GPU.
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  eager::wait_for(device);
  profiler::prepareProfiler(config, activities);
  // Scopes of operations and of Tessera's own; those of autograd's nodes would only repeat their time.
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  std::unique_ptr<profiler::ProfilerResult> result;
  try {
    work();
    eager::wait_for(device);
    result = profiler::disableProfiler();
  } catch (...) {
    if (!result) profiler::disableProfiler();
    throw;
  }
  std::vector<const profiler::KinetoEvent*> events;
  for (const profiler::KinetoEvent& event : result->events()) {
    // On a GPU a scope of ours would count the kernels inside it once more.
    const bool is_scope = !device.is_cpu() && event.name().starts_with("tessera::");
    if (event.deviceType() == device.type() && !is_scope && event.endNs() >= event.startNs())
      events.push_back(&event);
  }
  std::vector<KernelTime> found = device.is_cpu() ? of_operations(std::move(events)) : of_kernels(events);
  if (found.empty())
    user_error({.where = "train.profiler",
                .problem = "LibTorch's profiler saw no kernel",
                .hint = "on a GPU it needs CUPTI and permission to use it"});
  return found;
}

}  // namespace tessera::profile
