// SPDX-License-Identifier: Apache-2.0
// A model's description as a JSON object. Private to this room. Pure; safe from any thread.
#pragma once

#include "tessera/arch/model.h"
#include "tessera/plan/json_fields.h"

namespace tessera::planner {

/// {"family": "vit", "image_size": 224, ...}: every field of the family's config.
plan::JsonFields::Json model_to_json(const arch::ModelConfig& model);

/// Errors: UserError that names the file of `fields`: an unknown family or key, a missing key, a wrong type,
/// and what arch::check() refuses.
arch::ModelConfig model_from_json(const plan::JsonFields::Json& json, const plan::JsonFields& fields);

}  // namespace tessera::planner
