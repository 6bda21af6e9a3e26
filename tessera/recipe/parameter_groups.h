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
  /// pattern is matched with the whole name; * is any text, ? any byte, [...] one of some. Errors: UserError
  /// with the entry and what is wrong with it.
  explicit ParameterGroups(const OptimizerRecipe& optimizer);

  /// `matrix`: a matrix or a convolution, not a bias, norm, token or position; only these decay unless
  /// no_decay is "none" or a group says so. `units_after`: between the parameter's unit and the last;
  /// lr_scale starts as layer_decay to that power (MAE: patch embedding, tokens and positions are layer 0,
  /// block i is layer i + 1, the rest is the last; Clark et al., arXiv 2003.10555). Of groups that match,
  /// each says what it says, the last wins; lr_scale multiplies.
  Treatment of(const std::string& name, bool matrix, int64_t units_after) const;

  /// Errors: UserError when a group matches none of the names.
  void check_all_match(const std::vector<std::string>& names) const;

 private:
  struct Group {
    std::string text, pattern;
    std::optional<double> lr_scale, weight_decay;
    bool freeze = false;
  };

  OptimizerRecipe optimizer_;
  std::vector<Group> groups_;
};

}  // namespace tessera::recipe
