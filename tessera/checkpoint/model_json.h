// SPDX-License-Identifier: Apache-2.0
// What a checkpoint says of the model whose weights it holds. Pure.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/arch/model.h"

namespace tessera::checkpoint {

/// {"kind": family, "parameters": {name: shape}}, in forward order: what Progress::model_json holds.
inline std::string model_json(const arch::ModelConfig& config) {
  nlohmann::ordered_json json = {{"kind", config.family()}};
  for (const auto& spec : arch::parameters(config)) {
    if (!spec.buffer) json["parameters"][spec.name] = spec.shape;
  }
  return json.dump();
}

/// A deeper model's checkpoint holds all that a shallower one asks for, and still is not its own. `saved`:
/// its Progress::model_json. Errors: UserError that names the first parameters which `model` has not, with
/// their shapes, and says how many more there are.
void refuse_surplus(const std::string& saved, const arch::ModelConfig& model,
                    const std::filesystem::path& checkpoint);

}  // namespace tessera::checkpoint
