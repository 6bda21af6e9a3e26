// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/mesh/cuda_plugin.h"
#include "tessera/ops/device_graph.h"
#include "tessera/ops/device_kernels.h"
#include "tessera/ops/device_linear.h"
#include "tessera/recipe/choose_device.h"
#include "tessera/train/fused_pictures.h"
#include "tessera/train/session.h"
#include "tessera/train/teacher.h"

namespace tessera::train {
namespace {

/// The plug-in's products and kernels whose results are LibTorch's; a warning for each of the others.
void use_kernels_of(const mesh::CudaPlugin& plugin, const recipe::RunRecipe& run, at::Device device) {
  static ops::DeviceKernels kernels;  // static: the ops keep a pointer
  static ops::DeviceProducts products;
  kernels = wanted_kernels(*plugin.kernels, run);
  products = *plugin.products;
  for (const auto& faults : {ops::remove_faulty(kernels, device), remove_faulty_pictures(kernels, device),
                             ops::remove_faulty(products, device)}) {
    for (const std::string& fault : faults) warn(concat("[train.device] the CUDA ", fault));
  }
  ops::use_device_kernels(&kernels, device.type());
  ops::use_device_products(&products, device.type());
}

/// That a rank is predicted to need. (A checkpoint's copy lies in the host's memory.)
plan::Memory gpu_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank) {
  return plan::predict_memory(recipe.model, plan, plan_precision(recipe, plan.world, at::kCUDA),
                              batch_per_rank);
}

/// Ranks of this host that compute on one GPU, at most.
int64_t ranks_of_a_gpu(const launch::Ranks& ranks) {
  const int64_t gpus = mesh::cuda_in_use().plugin->device_count();
  return (ranks.local_world + gpus - 1) / gpus;
}

/// The thread computes on a stream of its own: nothing can be recorded on the device's default one. Before
/// anything is made there, since autograd brings each gradient to the stream of its parameter's first use.
void prepare_for_graphs(const mesh::CudaPlugin& plugin, at::Device device) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  streams.exchangeStream(streams.getStreamFromGlobalPool(device));
  ops::use_device_graphs(plugin.make_graph, device.type());
}

}  // namespace

ops::DeviceKernels wanted_kernels(ops::DeviceKernels kernels, const recipe::RunRecipe& run) {
  if (!run.cuda_fused_gelu) {
    kernels.gelu = nullptr;
    kernels.gelu_backward = nullptr;
  }
  return kernels;
}

at::Device choose_device(const recipe::Recipe& recipe, const launch::Ranks& ranks) {
  if (recipe.run.device == recipe::DeviceKind::kCpu) return at::kCPU;
  const mesh::OpenedCuda cuda = mesh::open_cuda();
  const recipe::FoundGpus found{cuda.missing, cuda.plugin != nullptr ? cuda.plugin->device_count() : 0};
  const auto gpu = recipe::choose_gpu(recipe.run.device, found, {ranks.local_rank, ranks.local_world},
                                      recipe.run.share_gpu);
  if (!gpu) return at::kCPU;
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(*gpu));
  cuda.plugin->check_device(device.index());
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  mesh::use_cuda({cuda.plugin, device.index(), recipe.run.share_gpu});
  if (recipe.run.cuda_graphs != recipe::CudaGraphs::kOff) prepare_for_graphs(*cuda.plugin, device);
  use_kernels_of(*cuda.plugin, recipe.run, device);
  return device;
}

std::vector<std::string> settings_without_effect(const recipe::RunRecipe& run, at::Device device) {
  std::vector<std::string> lines;
  const auto add = [&](const char* key, bool changed) {
    if (changed && device.is_cpu())
      lines.push_back(concat(key, " has no effect on the CPU: it is for runs on GPUs"));
  };
  add("run.share_gpu", run.share_gpu);
  add("run.cuda_fused_gelu", run.cuda_fused_gelu);
  add("run.keep_activations", run.keep_activations != recipe::KeepActivations::kAuto);
  return lines;
}

std::string describe_device(at::Device device) {
  const mesh::CudaPlugin* plugin = mesh::cuda_in_use().plugin;
  if (!device.is_cuda() || plugin == nullptr) return "CPU";
  const mesh::CudaDevice gpu = plugin->device(device.index());
  return concat(gpu.name, " (GPU ", static_cast<int>(device.index()), ", ",
                human_bytes(static_cast<double>(gpu.total_bytes)), ")");
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void check_gpu_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                      const launch::Ranks& ranks, const std::string& otherwise) {
  const mesh::CudaInUse cuda = mesh::cuda_in_use();
  TESSERA_CHECK(cuda.plugin != nullptr, "no GPU was chosen");
  const mesh::CudaDevice gpu = cuda.plugin->device(cuda.device);
  const int64_t sharing = ranks_of_a_gpu(ranks);
  const double needed = static_cast<double>(sharing) * gpu_memory(recipe, plan, batch_per_rank).total();
  if (needed <= static_cast<double>(gpu.free_bytes)) return;
  user_error({.where = "train.memory",
              .problem = concat(
                  "the run does not fit GPU ", cuda.device, " (", gpu.name,
                  "): ", sharing == 1 ? "a rank needs" : concat(sharing, " ranks that share it need"),
                  " about ", human_bytes(needed), ", but ", human_bytes(static_cast<double>(gpu.free_bytes)),
                  " of ", human_bytes(static_cast<double>(gpu.total_bytes)), " are free"),
              .hint = savings_hint(memory_savings(recipe, plan, batch_per_rank, ranks) + otherwise)});
}

bool keeps_activations(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                       at::Device device) {
  if (device.is_cpu()) return false;
  if (recipe.run.keep_activations != recipe::KeepActivations::kAuto)
    return recipe.run.keep_activations == recipe::KeepActivations::kAlways;
  const mesh::CudaInUse cuda = mesh::cuda_in_use();
  if (cuda.plugin == nullptr || cuda.shared)
    return false;  // how much of its memory is the rank's is not known
  const plan::Memory memory = gpu_memory(with_kept_activations(recipe, true), plan, batch_per_rank);
  double needed = memory.total() + teacher_bytes(recipe, plan.world, batch_per_rank, device);
  if (recipe.run.cuda_graphs != recipe::CudaGraphs::kOff) needed += memory.activations;  // the graph's own
  return fits_kept_activations(needed, static_cast<double>(cuda.plugin->device(cuda.device).free_bytes));
}

bool fits_kept_activations(double needed_bytes, double free_bytes) {
  return needed_bytes <= 0.8 * free_bytes;
}

}  // namespace tessera::train
