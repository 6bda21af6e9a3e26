// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "tessera/planner/likeness.h"
#include "tessera/planner/profile.h"

namespace tessera::planner {

std::vector<Likeness> likenesses(const arch::ModelConfig& model) {
  constexpr double kBytes = 4;  // of a value; any number tells activations apart
  std::map<std::string, std::vector<std::pair<std::vector<int64_t>, int64_t>>> shapes;
  for (const arch::ParameterSpec& spec : arch::parameters(model))
    shapes[spec.unit].emplace_back(spec.shape, spec.cut.dim);
  const std::vector<std::string> names = arch::unit_names(model);
  const std::vector<double> flops = arch::unit_flops(model);
  const arch::Activations activations = arch::activations(model, kBytes);
  std::vector<Likeness> all;
  for (size_t i = 0; i < names.size(); ++i) {
    const arch::UnitActivations& of = activations.units[i];
    all.emplace_back(shapes[names[i]], flops[i], of.input, of.all, of.again);
  }
  return all;
}

std::vector<std::string> unit_kinds(const arch::ModelConfig& model) {
  const std::vector<std::string> names = arch::unit_names(model);
  const std::vector<Likeness> alike = likenesses(model);
  std::map<Likeness, std::string> first;
  std::vector<std::string> kinds;
  for (size_t i = 0; i < names.size(); ++i) kinds.push_back(first.emplace(alike[i], names[i]).first->second);
  return kinds;
}

}  // namespace tessera::planner
