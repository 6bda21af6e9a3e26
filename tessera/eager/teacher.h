// SPDX-License-Identifier: Apache-2.0
// A trained network whose answers another one learns.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/eager/device_input.h"
#include "tessera/mesh/mesh.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

struct TrainState;

/// Bytes a rank of the recipe's teacher, of `world` ranks; 0: it has none. Opens the headers of
/// `distill.teacher`. Errors: as Teacher's.
double teacher_bytes(const recipe::Recipe& student, int64_t world, int64_t batch_per_rank,
                     at::Device device = at::kCPU);

/// Opens distill.teacher and compares its tensors with its model, for a dry run. Errors: as Teacher's.
void check_teacher(const recipe::Recipe& student, Log& log, const std::vector<std::string>& classes);

/// Sharded over the same ranks as its student, at the recipe's level, without gradients and as in evaluation.
/// Belongs to the training thread.
class Teacher {
 public:
  /// Builds the model of `distill.teacher` on `device` and fills this rank's shards. Collective. Errors:
  /// UserError when it is no model with a head, or of other images or classes than the student. `classes`:
  /// the names of the data's, which the teacher's must agree with where it has some.
  Teacher(const recipe::Recipe& student, mesh::Mesh& mesh, Log& log, at::Device device = at::kCPU,
          const std::vector<std::string>& classes = {});
  ~Teacher();

  /// Logits [size, classes] float32 of the batch that the student sees (augmented, mixed; normed with the
  /// teacher's own mean and std). `has_samples`: false on a rank without samples, which helps the others to
  /// gather and gets an undefined tensor. Collective.
  at::Tensor logits(const DeviceInput::Input& input, bool has_samples);

 private:
  std::unique_ptr<TrainState> state_;
  at::Tensor scale_, shift_;  // [1, channels, 1, 1], from the student's pixels to its own; undefined: none
};

}  // namespace tessera::eager
