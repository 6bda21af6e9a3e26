// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/gradient_memory.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace tessera::ops {
namespace {

thread_local GradientPlace place_of;

}  // namespace

GradientMemory::GradientMemory(GradientPlace place) : before_(std::exchange(place_of, std::move(place))) {}

GradientMemory::~GradientMemory() { place_of = std::move(before_); }

at::Tensor empty_gradient(const at::Tensor& parameter) {
  at::Tensor place = place_of ? place_of(parameter) : at::Tensor();
  return place.defined() ? place : at::empty(parameter.sizes(), parameter.options());
}

}  // namespace tessera::ops
