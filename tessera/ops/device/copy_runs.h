// SPDX-License-Identifier: Apache-2.0
// Many small copies on a device in one launch.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::ops {

/// Contiguous, of one length and one device.
struct CopyRun {
  at::Tensor to, from;
};

/// The device has a kernel for such a copy: both of the same float dtype, or `to` of float32.
bool has_copy_runs(const CopyRun& copy);

/// to.copy_(from) of each, or with `add` to.add_(from), in a launch for up to 64 of them. Requires:
/// has_copy_runs of each; all have the same two dtypes; no two write the same memory.
void copy_runs(const std::vector<CopyRun>& copies, bool add);

}  // namespace tessera::ops
