// SPDX-License-Identifier: Apache-2.0
// Weights, images and targets that make_parity_fixture.py makes too, bit for bit: an integer hash of
// (name, element) scaled to float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/arch/model.h"
#include "tessera/models/segment.h"

namespace tessera::models::formula {

/// Word `index` of the stream `name`.
uint64_t word(const std::string& name, uint64_t index);
/// [count] float32 in [-1, 1).
at::Tensor uniform(const std::string& name, int64_t count);
/// The value of a parameter, float32.
at::Tensor weights(const std::string& name, at::IntArrayRef shape);
/// Gives every parameter of the model its value, in memory of its own.
void fill(SegmentedModel& model, at::ScalarType dtype = at::kFloat);
/// 16 patches of an image of one channel, width 32, 3 blocks, 4 heads, 10 classes, a class token.
arch::VitConfig small_vit();
/// A name of the ladder, or the keys of make_parity_fixture.py's small().
arch::VitConfig vit_config_of(const nlohmann::json& description);
/// [count, channels, size, size] float32.
at::Tensor images(const std::string& name, int64_t count, const arch::ModelConfig& config);
/// [count] int64.
at::Tensor targets(int64_t count, int64_t classes, int64_t step = 0);

/// fixtures/NAME.json, read once.
const nlohmann::json& fixture(const std::string& name);
/// The largest error of a tensor that a fixture describes (describe_gradient), as a share of its largest
/// value. Some gradients are zero but for rounding (a key's bias moves all scores of a query alike): those
/// are compared with 1 instead.
double tensor_error(const std::string& name, const at::Tensor& tensor, const nlohmann::json& expected);

}  // namespace tessera::models::formula
