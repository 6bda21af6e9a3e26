// SPDX-License-Identifier: Apache-2.0
// Where the time of a thread's LibTorch calls goes, by kind of operation.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::profile {

enum class OperationKind : uint8_t {
  kGemmForward,
  kGemmInput,   // gradients of inputs
  kGemmWeight,  // gradients of weights
  kGemmOther,   // backward products of LibTorch's own operations: which of the two is not known
  kAttention,
  kAttentionBackward,
  kConvolution,
  kNorm,
  kOptimizer,
  kOther,  // element by element, copies, reductions
  kCount
};

std::string_view name_of(OperationKind kind);

/// The kind of an operation that LibTorch or Tessera announces as `name` ("aten::addmm", "tessera::linear").
OperationKind kind_of(std::string_view name, bool backward);

/// While it lives, counts the operations of this thread, forward and backward (on a device autograd has
/// threads of its own for that): those of LibTorch and those that Tessera's ops announce with
/// RECORD_USER_SCOPE. On the CPU it is the host's time, and costs about a microsecond an operation; on a
/// device the time of the stream that was the thread's current one, which waits for nothing. One at a time on
/// a thread.
class OperationTimes {
 public:
  using Seconds = std::array<double, static_cast<size_t>(OperationKind::kCount)>;

  explicit OperationTimes(c10::Device device = c10::Device(c10::DeviceType::CPU));
  ~OperationTimes();
  OperationTimes(const OperationTimes&) = delete;
  OperationTimes& operator=(const OperationTimes&) = delete;

  /// Of the calls that have ended; an operation's time is without that of the operations inside it. Waits for
  /// the device.
  Seconds seconds() const;

 private:
  struct Counted;

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  std::shared_ptr<Counted> counted_;
  c10::DebugInfoGuard known_to_callbacks_;
  uint64_t handle_;
};

}  // namespace tessera::profile
