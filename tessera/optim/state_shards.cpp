// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/state_shards.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::optim {

namespace {

struct DtypeName {
  at::ScalarType dtype;
  const char* name;  // of safetensors
};
constexpr std::array<DtypeName, 10> kDtypes = {{{at::kFloat, "F32"},
                                                {at::kDouble, "F64"},
                                                {at::kBFloat16, "BF16"},
                                                {at::kHalf, "F16"},
                                                {at::kLong, "I64"},
                                                {at::kInt, "I32"},
                                                {at::kShort, "I16"},
                                                {at::kChar, "I8"},
                                                {at::kByte, "U8"},
                                                {at::kBool, "BOOL"}}};

std::string name_of(at::ScalarType dtype, const std::string& tensor) {
  const auto known = std::ranges::find(kDtypes, dtype, &DtypeName::dtype);
  if (known != kDtypes.end()) return known->name;
  user_error(
      {.where = "checkpoint.save",
       .problem = concat(tensor, " is ", c10::toString(dtype), ", which safetensors does not support")});
}

}  // namespace

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  const auto known = std::ranges::find(kDtypes, name, &DtypeName::name);
  if (known == kDtypes.end()) return std::nullopt;
  return known->dtype;
}

void StateShards::add_whole(std::string name, bool replica, const at::Tensor& tensor) {
  const std::vector<int64_t> shape = tensor.sizes().vec();
  add(std::move(name), shape, Region::whole(shape), replica, tensor);
}

void StateShards::add(std::string name, std::vector<int64_t> shape, Region region, bool replica,
                      const at::Tensor& memory) {
  TESSERA_CHECK(memory.is_contiguous() && memory.numel() == region.numel(), name);
  at::Tensor host = memory;
  if (!memory.is_cpu()) {
    host = at::empty(memory.sizes(), at::TensorOptions(memory.scalar_type()).pinned_memory(memory.is_cuda()));
    staging_.push_back({memory, host});
  }
  const std::string dtype = name_of(memory.scalar_type(), name);
  list_.push_back({std::move(name), dtype, std::move(shape), std::move(region),
                   static_cast<std::byte*>(host.data_ptr()), replica});
}

void StateShards::fetch() const {
  if (staging_.empty()) return;
  for (const StagingBuffer& one : staging_) one.host.copy_(one.tensor, /*non_blocking=*/true);
  const at::Device device = staging_.front().tensor.device();
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

void StateShards::store() const {
  const at::NoGradGuard no_grad;
  for (const StagingBuffer& one : staging_) one.tensor.copy_(one.host);
}

}  // namespace tessera::optim
