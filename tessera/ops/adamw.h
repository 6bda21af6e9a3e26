// SPDX-License-Identifier: Apache-2.0
// AdamW and Adam over flat shards in one pass: moments, decay, update. Local; splits over the intra-op
// threads. Every element depends on itself alone, so the result is the same for any split.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/device/kernel_table.h"

namespace tessera::ops {

struct AdamwOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  int64_t step = 1;         // 1-based, for the bias correction
  double grad_scale = 1.0;  // multiplies the gradient first (clipping)
  bool coupled = false;     // decay is a part of the gradient: Adam
};

/// All tensors: 1-D, contiguous, float32, the same length; the gradient may be bf16, or of the dtype
/// of `copy`, which gives the bits that the same values in float32 give. Or all of them float64, computed
/// with LibTorch's operations. Updates parameter and both moments in place, as torch.optim.AdamW does
/// (Loshchilov and Hutter, arXiv 1711.05101): p *= 1 - lr * wd; m, v; bias correction; p -= lr * m_hat /
/// (sqrt(v_hat) + eps). `coupled`: as torch.optim.Adam (Kingma and Ba, arXiv 1412.6980), g
/// += wd * p instead of the first. `copy`: of the same length, of another float dtype, gets the parameter's
/// new values; undefined: not wanted.
void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& options, at::Tensor copy = {});

inline constexpr int64_t kAdamwCoefficients = sizeof(device::AdamwCoefficients) / sizeof(float);

/// A row of AdamwOnDevice::coefficients: what `options` mean for one update, but for grad_scale.
std::array<float, kAdamwCoefficients> adamw_coefficients(const AdamwOptions& options);

/// Which elements of a shard are updated with which row of coefficients.
class AdamwRuns {
 public:
  /// `runs`: in ascending order, without overlap; elements outside of them are not updated. `device`: the
  /// shard's. `coupled`: Adam.
  AdamwRuns(std::vector<device::AdamwRun> runs, bool coupled, c10::Device device);
  const std::vector<device::AdamwRun>& list() const { return list_; }
  bool coupled() const { return coupled_; }
  const device::AdamwRun* on_device() const;

 private:
  std::vector<device::AdamwRun> list_;
  bool coupled_;
  at::Tensor on_device_;  // [runs, 3] int64
};

/// Numbers of an update in the memory of the shard's device: the host need not know them when it queues the
/// update, and a recorded update (device/graph.h) reads what is there when it is replayed.
struct AdamwOnDevice {
  at::Tensor coefficients;  // [rows, kAdamwCoefficients] float32
  at::Tensor grad_scale;    // [] float32: multiplies the gradient first
  at::Tensor use;           // [] float32: 0 = leave parameter, moments and copy as they are
};

/// The same update for all runs of a shard: one launch on a device that has the kernel. On the CPU and by
/// such a kernel bitwise the function above with the same numbers in AdamwOptions. `copy`: elements that are
/// not updated keep their values there, too.
void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwRuns& runs, const AdamwOnDevice& numbers, at::Tensor copy = {});

}  // namespace tessera::ops
