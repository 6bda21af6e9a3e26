// SPDX-License-Identifier: Apache-2.0
// Which parameters are trained how: optimizer.groups, layer_decay, no_decay and weight_decay of a recipe as
// one function of a parameter's name. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// How one parameter is trained.
struct Treatment {
  double lr_scale = 1;  // of the learning rate; 0 when frozen
  double weight_decay = 0;
};

class ParameterGroups {
 public:
  /// Reads optimizer.groups: "PATTERN: lr_scale=0.1, weight_decay=0, freeze", one or more of the three. A
  /// pattern is matched with the whole name as a shell matches file names (fnmatch): * is any text, dots
  /// included, ? any byte, [0-5] one byte of those, [!0-5] one of the others. Errors:
  /// UserError with the entry and what is wrong with it.
  explicit ParameterGroups(const OptimizerRecipe& optimizer);

  /// `matrix`: a matrix or a convolution, not a bias, norm, token or position; only these decay unless
  /// no_decay is "none" or a group says so. `units_after`: between the parameter's unit and the last;
  /// lr_scale starts as layer_decay to that power (MAE: patch embedding, tokens and positions are layer 0,
  /// block i is layer i + 1, the rest is the last; Clark et al., arXiv 2003.10555). Of groups that match,
  /// each says what it says, the last wins; lr_scale multiplies.
  Treatment of(const std::string& name, bool matrix, int64_t units_after) const;

  struct Match {
    std::string text;  // the entry of optimizer.groups
    int64_t parameters = 0;
    std::string first, last;  // of their names
  };
  /// Which of the names each group matches, in the groups' order. Errors: UserError when one matches none.
  std::vector<Match> matches(const std::vector<std::string>& names) const;

 private:
  struct Group {
    std::string text, pattern;
    std::optional<double> lr_scale, weight_decay;
    bool freeze = false;
  };

  OptimizerRecipe optimizer_;
  std::vector<Group> groups_;
};

/// Units at the model's beginning (plan::Plan::units) of which no parameter is trained: they need no backward
/// pass. Errors: as ParameterGroups.
int64_t frozen_units(const arch::ModelConfig& model, const OptimizerRecipe& optimizer);

}  // namespace tessera::recipe
