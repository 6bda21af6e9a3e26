// SPDX-License-Identifier: Apache-2.0
// What every family of models says of itself: parameters, buffers, units, what backward keeps. Numbers only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::arch {

/// kTruncatedNormal is timm's, cut at +-2; kNormalWithinTwo JAX's, without values beyond two standard
/// deviations.
enum class Init { kZero, kOne, kConstant, kTruncatedNormal, kNormalWithinTwo, kNormal, kUniform };

/// How tensor parallelism cuts a parameter: along `dim`, which is `parts` parts of equal size (queries, keys
/// and values), each of `items` items (heads) that stay whole. A rank holds the same items of every part.
struct Cut {
  int64_t dim = -1;  // -1: the parameter is not cut
  int64_t parts = 1;
  int64_t items = 1;
  bool operator==(const Cut&) const = default;
};

/// One parameter: name (that of the published model), shape, how it is initialised, which unit gathers it.
struct ParameterSpec {
  std::string name;            // "blocks.3.attn.qkv.weight"
  std::vector<int64_t> shape;  // as in the published model's state dict
  Init init = Init::kZero;
  double init_value = 0.0;  // constant, standard deviation (before a cut), or bound of the uniform
  std::string unit;         // "stem", "blocks.3", "head"
  bool decay = false;   // weight decay applies (matrices and convolutions; not bias, norm, tokens, positions)
  bool buffer = false;  // computed, not trained (the sin-cos position embedding)
  Cut cut = {};         // where the layers of its unit are cut
  bool is_cut() const { return cut.dim >= 0; }
  int64_t numel() const;
};

/// What training changes besides the parameters, whole on every rank and saved with them (BatchNorm's running
/// statistics).
struct BufferSpec {
  std::string name;            // "bn1.running_mean"
  std::vector<int64_t> shape;  // {}: one number
  double init_value = 0.0;
  std::string unit;
  bool whole_numbers = false;  // int64; else float32
  int64_t numel() const;
};

inline constexpr double kFloatBytes = 4;  // of what is computed in float32 whatever the compute dtype

/// The part of a unit's cut layers that a rank computes: for all samples of its tensor group, of which
/// 1/degree are its own.
struct TensorShare {
  int64_t degree = 1, index = 0;  // ranks of the group, and the rank's position in it
  bool keeps_gathered = false;    // the gathered inputs of the cut layers wait for backward
};

/// Values of a token that the exchanges of a cut layer's backward hold at once, for one of the rank's own
/// samples: the gathered gradient of its output, the gradient of its input before the sum, what the sum
/// receives, and its input where that is gathered again. `width`: of the residual stream.
double exchanged_width(const TensorShare& share, double width);

/// Bytes of one image that wait for the backward pass of one unit.
struct UnitActivations {
  double input = 0;  // what entered the unit; all that recompute keeps
  double all = 0;    // with the input
  double again = 0;  // what exists once more while a unit that kept only its input is computed again
  double sums = 0;   // of `again`: results of reduce-scatters that Recompute::kKeepSums keeps
};

/// Values of one image that a rank of a tensor group sends to each other rank of it for one unit and
/// micro-batch. A backward pass exchanges as many as `forward`.
struct Exchanges {
  double forward = 0;
  double inputs = 0;  // of gathering the inputs of cut layers once more
  /// Of computing the unit once more, with its last sum only where a LayerScale's gradient needs it.
  double again = 0;
  double again_with_sums = 0;  // the same where the sums were kept
};

/// Of a whole model, one image: without the image as the loader delivers it.
struct Activations {
  std::vector<UnitActivations> units;  // in forward order
  double working = 0;                  // gradients of activations, where they take the most
  double working_on_gpu = 0;           // on a GPU: what backward adds at most to all that waits for it
};

}  // namespace tessera::arch
