// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/device/cuda_plugin.h"
#include "tessera/device/graph.h"
#include "tessera/device/in_use.h"
#include "tessera/device/kernels.h"
#include "tessera/device/products.h"
#include "tessera/eager/fused_uint8_images.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/session.h"
#include "tessera/eager/teacher.h"
#include "tessera/ops/device/check_kernels.h"
#include "tessera/ops/device/linear.h"
#include "tessera/plan/memory.h"
#include "tessera/recipe/cost_inputs.h"

namespace tessera::eager {
namespace {

/// The plug-in's products and kernels whose results are LibTorch's; a warning for each of the others.
void use_kernels_of(const device::CudaPlugin& plugin, at::Device device) {
  device::DeviceKernels kernels = *plugin.kernels;
  device::DeviceProducts products = *plugin.products;
  for (const auto& faults : {ops::remove_faulty(kernels, device), remove_faulty_uint8_images(kernels, device),
                             ops::remove_faulty(products, device)}) {
    for (const std::string& fault : faults) warn(concat("[train.device] the CUDA ", fault));
  }
  device::register_kernels(&kernels, device.type());
  device::register_products(&products, device.type());
}

/// That a rank is predicted to need. (A checkpoint's copy lies in the host's memory.)
plan::Memory gpu_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank) {
  return plan::predict_memory(recipe.model, plan, cost_inputs(recipe, plan.world, at::kCUDA), batch_per_rank);
}

std::optional<device::CudaDevice> gpu_of(at::Device device) {
  const device::CudaPlugin* plugin = device::cuda_in_use().plugin;
  if (!device.is_cuda() || plugin == nullptr) return std::nullopt;
  return plugin->device(device.index());
}

/// Ranks of this host that compute on one GPU, at most.
int64_t ranks_of_a_gpu(const launch::Ranks& ranks) {
  const int64_t gpus = device::cuda_in_use().plugin->device_count();
  return (ranks.local_world + gpus - 1) / gpus;
}

/// The thread computes on a stream of its own: nothing can be recorded on the device's default one. Before
/// anything is made there, since autograd brings each gradient to the stream of its parameter's first use.
void prepare_for_graphs(const device::CudaPlugin& plugin, at::Device device) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  streams.exchangeStream(streams.getStreamFromGlobalPool(device));
  device::register_graphs(plugin.make_graph, device.type());
}

}  // namespace

at::Device choose_device(const DeviceRequest& request, const launch::Ranks& ranks) {
  if (request.kind == recipe::DeviceKind::kCpu) return at::kCPU;
  const device::OpenedCuda cuda = device::open_cuda();
  const recipe::FoundGpus found{cuda.missing, cuda.plugin != nullptr ? cuda.plugin->device_count() : 0};
  const auto gpu = recipe::choose_gpu(request.kind, found, {ranks.local_rank, ranks.local_world},
                                      request.share_gpu, request.settings);
  if (!gpu) return at::kCPU;
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(*gpu));
  cuda.plugin->check_device(device.index());
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  device::use_cuda({cuda.plugin, device.index(), request.share_gpu});
  if (request.may_record) prepare_for_graphs(*cuda.plugin, device);
  use_kernels_of(*cuda.plugin, device);
  return device;
}

at::Device choose_device(const recipe::Recipe& recipe, const launch::Ranks& ranks) {
  const recipe::CudaGraphs graphs = recipe.run.cuda_graphs;
  return choose_device(
      {.kind = recipe.run.device,
       .share_gpu = recipe.run.share_gpu,
       .may_record =
           graphs == recipe::CudaGraphs::kAuto ? ranks.world == 1 : graphs != recipe::CudaGraphs::kOff},
      ranks);
}

std::vector<std::string> settings_without_effect(const recipe::RunRecipe& run, at::Device device) {
  std::vector<std::string> lines;
  const auto add = [&](const char* key, bool changed) {
    if (changed && device.is_cpu())
      lines.push_back(concat(key, " has no effect on the CPU: it is for runs on GPUs"));
  };
  add("run.share_gpu", run.share_gpu);
  add("run.keep_activations", run.keep_activations != recipe::KeepActivations::kAuto);
  return lines;
}

std::string describe_device(at::Device device) {
  const std::optional<device::CudaDevice> gpu = gpu_of(device);
  if (!gpu) return "CPU";
  return concat(gpu->name, " (GPU ", static_cast<int>(device.index()), ", ",
                human_bytes(static_cast<double>(gpu->total_bytes)), ")");
}

std::string device_name(at::Device device) {
  const std::optional<device::CudaDevice> gpu = gpu_of(device);
  return gpu ? gpu->name : "CPU";
}

int64_t device_bytes(at::Device device) {
  const std::optional<device::CudaDevice> gpu = gpu_of(device);
  return gpu ? gpu->total_bytes : 0;
}

void wait_for(at::Device device) {
  const bool queues = !device.is_cpu() && !device.is_meta();
  if (queues) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::optional<loop::DeviceMemory> device_memory(at::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  using c10::CachingAllocator::StatType;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& all = stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
  return loop::DeviceMemory{all.current, all.peak};
}

void check_gpu_memory(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                      const launch::Ranks& ranks, const std::string& otherwise) {
  const device::CudaInUse cuda = device::cuda_in_use();
  TESSERA_CHECK(cuda.plugin != nullptr, "no GPU was chosen");
  const device::CudaDevice gpu = cuda.plugin->device(cuda.device);
  const int64_t sharing = ranks_of_a_gpu(ranks);
  const double needed = static_cast<double>(sharing) * gpu_memory(recipe, plan, batch_per_rank).total();
  if (needed <= static_cast<double>(gpu.free_bytes)) return;
  user_error(
      {.where = "train.memory",
       .problem =
           concat("the run does not fit GPU ", cuda.device, " (", gpu.name,
                  "): ", sharing == 1 ? "a rank needs" : concat(sharing, " ranks that share it need"),
                  " about ", human_bytes(needed), ", but ", human_bytes(static_cast<double>(gpu.free_bytes)),
                  " of ", human_bytes(static_cast<double>(gpu.total_bytes)), " are free",
                  largest_part(recipe, plan, batch_per_rank)),
       .hint = savings_hint(memory_savings(recipe, plan, batch_per_rank, ranks), otherwise,
                            (needed - static_cast<double>(gpu.free_bytes)) / static_cast<double>(sharing))});
}

DeviceChoices choose_for_device(const recipe::Recipe& recipe, const plan::Plan& plan, int64_t batch_per_rank,
                                at::Device device) {
  const recipe::RunRecipe& run = recipe.run;
  const device::CudaInUse cuda = device::cuda_in_use();
  // How much of the memory of a shared GPU is the rank's is not known.
  const bool knows_memory = device.is_cuda() && cuda.plugin != nullptr && !cuda.shared;
  if (!knows_memory) {
    return {
        .keeps_activations = !device.is_cpu() && run.keep_activations == recipe::KeepActivations::kAlways,
        .graphs = run.cuda_graphs == recipe::CudaGraphs::kAuto ? recipe::CudaGraphs::kOff : run.cuda_graphs};
  }
  const double teacher = teacher_bytes(recipe, plan.world, batch_per_rank, device);
  const auto predicted = [&](bool keeps) {
    plan::CostInputs inputs = cost_inputs(with_kept_activations(recipe, keeps), plan.world, device);
    inputs.records_passes = true;
    inputs.records_update = recipe::updates_without_host(recipe.optimizer);
    return plan::predict_memory(recipe.model, plan, inputs, batch_per_rank);
  };
  const auto eager_bytes = [](const plan::Memory& memory) { return memory.total() - memory.recording; };
  const plan::Memory plain = predicted(false), kept = predicted(true);
  const std::string why =
      plan.world > 1 ? "several ranks have not recorded on GPUs yet (run.cuda_graphs = \"step\" tries it)"
                     : why_not_recorded(recipe, plan, device);
  DeviceChoices choices = choices_that_fit(run, why.empty(),
                                           {.plain = eager_bytes(plain) + teacher,
                                            .kept = eager_bytes(kept) + teacher,
                                            .plain_recorded = plan::bytes_to_record(plain) + teacher,
                                            .kept_recorded = plan::bytes_to_record(kept) + teacher},
                                           static_cast<double>(cuda.plugin->device(cuda.device).free_bytes));
  if (run.cuda_graphs == recipe::CudaGraphs::kAuto && choices.graphs == recipe::CudaGraphs::kOff)
    choices.why_no_graphs = why.empty() ? "too little memory is free for the recordings" : why;
  return choices;
}

DeviceChoices choices_that_fit(const recipe::RunRecipe& run, bool recordable, const Needs& needs,
                               double free_bytes) {
  const auto fits = [&](bool keeps, bool records) {
    const double needed =
        records ? (keeps ? needs.kept_recorded : needs.plain_recorded) : (keeps ? needs.kept : needs.plain);
    return needed <= plan::kShareForAuto * free_bytes;
  };
  const bool asks_for_graphs =
      run.cuda_graphs == recipe::CudaGraphs::kPass || run.cuda_graphs == recipe::CudaGraphs::kStep;
  DeviceChoices choices;
  choices.keeps_activations = run.keep_activations == recipe::KeepActivations::kAuto
                                  ? fits(true, asks_for_graphs)
                                  : run.keep_activations == recipe::KeepActivations::kAlways;
  choices.graphs = run.cuda_graphs;
  if (run.cuda_graphs == recipe::CudaGraphs::kAuto) {
    choices.graphs = recordable && fits(choices.keeps_activations, true) ? recipe::CudaGraphs::kStep
                                                                         : recipe::CudaGraphs::kOff;
  }
  return choices;
}

}  // namespace tessera::eager
