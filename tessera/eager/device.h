// SPDX-License-Identifier: Apache-2.0
// The device of this rank. A new kind of device is a file like device.cpp: everything else takes an
// at::Device.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "tessera/launch/launch.h"
#include "tessera/loop/backend.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/choose_device.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

/// What is asked for of a rank's device.
struct DeviceRequest {
  recipe::DeviceKind kind = recipe::DeviceKind::kAuto;
  bool share_gpu = false;   // ranks of a host may compute on one GPU; their tensors go through its memory
  bool may_record = false;  // CUDA graphs: this thread then computes on a stream of its own
  recipe::DeviceSettings settings = {};
};

/// The CPU, or the GPU with the rank's number on its host, which is this thread's current device from then
/// on; groups that connect afterwards talk over NCCL as well (device/cuda_plugin.h). Errors: UserError of
/// recipe::choose_gpu, and of the plug-in when it has no code for the GPU.
at::Device choose_device(const DeviceRequest& request, const launch::Ranks& ranks);
/// What the recipe's [run] asks for.
at::Device choose_device(const recipe::Recipe& recipe, const launch::Ranks& ranks);

/// A line for people on each setting of [run] that was changed and that changes nothing on this device.
std::vector<std::string> settings_without_effect(const recipe::RunRecipe& run, at::Device device);

/// "CPU", "NVIDIA H200 (GPU 1, 139.7 GiB)".
std::string describe_device(at::Device device);

/// "CPU", "NVIDIA H200": the same on every machine that has one.
std::string device_name(at::Device device);

/// All memory of a GPU; 0 of the CPU.
int64_t device_bytes(at::Device device);

/// Until all that is queued there is done; the CPU, and tensors without memory, queue nothing.
void wait_for(at::Device device);

/// By LibTorch's allocator of the device, without waiting for it; nothing for the CPU.
std::optional<loop::DeviceMemory> device_memory(at::Device device);

/// Refuses (UserError, with what would save how much) a run that will not fit into the rank's GPU, which
/// choose_device() chose. `otherwise`: what else the command offers, at the message's end.
void check_gpu_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                      const launch::Ranks& ranks, const std::string& otherwise = "; --force runs it anyway");

/// What a run decides for its device before the model takes memory.
struct DeviceChoices {
  /// Blocks keep the outputs of norms and GELUs for backward (run.keep_activations). Never on the CPU, whose
  /// kernels make them again within their products.
  bool keeps_activations = false;
  /// What is replayed as CUDA graphs (run.cuda_graphs); never kAuto.
  recipe::CudaGraphs graphs = recipe::CudaGraphs::kOff;
  std::string why_no_graphs = {};  // where "auto" left them off on a GPU

  friend bool operator==(const DeviceChoices&, const DeviceChoices&) = default;
};

/// Settings with "auto" are decided by choices_that_fit(); graphs only for one rank: with several, their
/// collectives in recordings have not run on GPUs yet. Errors: UserError when distill.teacher cannot be
/// opened.
DeviceChoices choose_for_device(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                                at::Device device);

/// Bytes of a rank that a run is predicted to need.
struct Needs {
  double plain = 0, kept = 0;                    // without kept outputs and with them
  double plain_recorded = 0, kept_recorded = 0;  // the same with CUDA graphs
};

/// The rule for "auto": the run is predicted to need at most four fifths of the free memory; the rest is for
/// what the prediction leaves out (workspaces of libraries, fragments between tensors). Where only one of
/// kept outputs and graphs fits, outputs are kept. `recordable`: graphs may be chosen.
DeviceChoices choices_that_fit(const recipe::RunRecipe& run, bool recordable, const Needs& needs,
                               double free_bytes);

}  // namespace tessera::eager
