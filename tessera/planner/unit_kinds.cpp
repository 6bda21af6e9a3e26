// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <tuple>

#include "tessera/planner/profile.h"

namespace tessera::planner {
namespace {

constexpr double kBytes = 4;  // of a value; any number tells activations apart

/// What units of one kind have in common: shapes and cuts of parameters, FLOPs, activations of an image.
using Likeness =
    std::tuple<std::vector<std::pair<std::vector<int64_t>, int64_t>>, double, double, double, double>;

}  // namespace

std::vector<std::string> unit_kinds(const arch::ModelConfig& model) {
  std::map<std::string, std::vector<std::pair<std::vector<int64_t>, int64_t>>> shapes;
  for (const arch::ParameterSpec& spec : arch::parameters(model))
    shapes[spec.unit].emplace_back(spec.shape, spec.cut.dim);
  const std::vector<std::string> names = arch::unit_names(model);
  const std::vector<double> flops = arch::unit_flops(model);
  const arch::Activations activations = arch::activations(model, kBytes);
  std::map<Likeness, std::string> first;
  std::vector<std::string> kinds;
  for (size_t i = 0; i < names.size(); ++i) {
    const arch::UnitActivations& of = activations.units[i];
    const Likeness likeness = {shapes[names[i]], flops[i], of.input, of.all, of.again};
    kinds.push_back(first.emplace(likeness, names[i]).first->second);
  }
  return kinds;
}

}  // namespace tessera::planner
