// SPDX-License-Identifier: Apache-2.0
// What is learned: what a model's outputs cost, and how good they are. Classification is the one task there
// is (classification.cpp); another is a file like it, and what make_task() says for its recipes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/data/batch.h"
#include "tessera/data/source.h"
#include "tessera/loop/evaluation.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

/// Of one evaluation, what this rank has seen. Belongs to one thread.
class OutputJudge {
 public:
  virtual ~OutputJudge() = default;
  /// Counts a batch of this rank. `outputs`: the model's, [size, ...] on its device.
  virtual void update(const data::Batch& batch, const at::Tensor& outputs) = 0;
  /// The figures of all ranks, the same on each; on rank 0 the images to show, unless the evaluation was
  /// stopped. Collective.
  virtual void finish(loop::World& world, loop::Evaluation& result) = 0;
};

/// A value without state: any thread.
class Task {
 public:
  virtual ~Task() = default;
  /// The sum over the samples of a training batch, a scalar that can be differentiated. `outputs`: the
  /// model's, [size, ...]; `teacher_logits`: a teacher's, or undefined.
  virtual at::Tensor loss_sum(const at::Tensor& outputs, const data::Batch& batch,
                              const at::Tensor& teacher_logits) const = 0;
  /// `source` and `options` outlive it.
  virtual std::unique_ptr<OutputJudge> judge(const data::Source& source,
                                             const loop::EvaluateOptions& options) const = 0;
};

/// The recipe's: classification.
std::shared_ptr<const Task> make_task(const recipe::Recipe& recipe);

}  // namespace tessera::eager
