// What a checkpoint says of the model whose weights it holds. Pure.
#pragma once

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

}  // namespace tessera::checkpoint
