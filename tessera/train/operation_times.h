// Where the time of a thread's LibTorch calls goes, by kind of operation.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::train {

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

/// While it lives, counts the operations of this thread, forward and backward: those of LibTorch and those
/// that Tessera's ops announce with RECORD_USER_SCOPE. Costs about a microsecond an operation. One at a time
/// on a thread.
class OperationTimes {
 public:
  using Seconds = std::array<double, static_cast<size_t>(OperationKind::kCount)>;

  OperationTimes();
  ~OperationTimes();
  OperationTimes(const OperationTimes&) = delete;
  OperationTimes& operator=(const OperationTimes&) = delete;

  /// So far; an operation's time is without that of the operations inside it.
  const Seconds& seconds() const;

 private:
  uint64_t handle_;
};

}  // namespace tessera::train
