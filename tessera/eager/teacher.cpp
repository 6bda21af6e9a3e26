// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/teacher.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/data/class_difference.h"
#include "tessera/eager/init_from.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/plan/memory.h"

namespace tessera::eager {
namespace {

void check_fits(const arch::ModelConfig& teacher, const arch::ModelConfig& student,
                const std::string& origin) {
  const auto alike = [&](const char* what, int64_t theirs, int64_t ours) {
    if (theirs == ours) return;
    user_error({.where = "train.teacher",
                .problem = concat("the teacher ", origin, " has ", theirs, ' ', what),
                .expected = concat(ours, ", as its student")});
  };
  alike("classes", teacher.classes(), student.classes());
  alike("channels", teacher.channels(), student.channels());
  alike("pixels a side", teacher.image_size(), student.image_size());
}

/// The student's recipe with the teacher's model and nothing that is about training.
recipe::Recipe teachers_recipe(const recipe::Recipe& student, const arch::ModelConfig& model) {
  recipe::Recipe recipe = student;
  recipe.model = model;
  recipe.shard.units = "";
  recipe.parallel = recipe::ParallelRecipe();
  recipe.shard.recompute = false;
  recipe.distill = {};
  recipe.precision.linear = recipe::Linear::kAuto;
  return recipe;
}

struct Found {
  weights::Trained trained;
  recipe::Recipe recipe;
};

Found open_teacher(const recipe::Recipe& student) {
  weights::Trained trained = weights::open_trained(student.distill.teacher);
  check_fits(trained.model, student.model, trained.origin);
  recipe::Recipe recipe = teachers_recipe(student, trained.model);
  return {std::move(trained), std::move(recipe)};
}

/// One number a channel as [1, channels, 1, 1].
at::Tensor by_channel(const std::vector<float>& numbers) {
  return at::tensor(numbers).view({1, static_cast<int64_t>(numbers.size()), 1, 1});
}

}  // namespace

double teacher_bytes(const recipe::Recipe& student, int64_t world, int64_t batch_per_rank,
                     at::Device device) {
  if (student.distill.teacher.empty()) return 0;
  const recipe::Recipe recipe = open_teacher(student).recipe;
  return plan::inference_bytes(recipe.model, make_plan(recipe, world), cost_inputs(recipe, world, device),
                               batch_per_rank);
}

namespace {

void check_classes_of(const recipe::Recipe& student, const weights::Trained& teacher,
                      const std::vector<std::string>& classes, Log& log) {
  data::check_weights_classes("distill.teacher", student.distill.teacher, teacher.classes, classes,
                              [&log](const std::string& line) { log.warn(line); });
}

}  // namespace

void check_teacher(const recipe::Recipe& student, Log& log, const std::vector<std::string>& classes) {
  const auto [found, recipe] = open_teacher(student);
  check_classes_of(student, found, classes, log);
  const weights::FinetunedSource source(found.tensors, found.model, recipe.model,
                                        {.positions = {}, .head = weights::HeadStart::kKeep, .head_bias = 0});
  log.info(concat("teacher: ", arch::describe(found.model), ", from ", found.origin));
}

Teacher::Teacher(const recipe::Recipe& student, mesh::Mesh& mesh, Log& log, at::Device device,
                 const std::vector<std::string>& classes) {
  const auto [found, recipe] = open_teacher(student);
  check_classes_of(student, found, classes, log);
  state_ = assemble(recipe, make_plan(recipe, mesh.world_size()), mesh, /*with_optimizer=*/false, device);
  take(*state_, found, "teacher", log);
  const auto &ours = student.data.transform, &theirs = found.pixels;
  if (ours.mean != theirs.mean || ours.std != theirs.std) {
    // A pixel is student * std + mean, and for the teacher that less its mean, over its std.
    scale_ = (by_channel(ours.std) / by_channel(theirs.std)).to(device);
    shift_ = ((by_channel(ours.mean) - by_channel(theirs.mean)) / by_channel(theirs.std)).to(device);
  }
}

Teacher::~Teacher() = default;

at::Tensor Teacher::logits(const DeviceInput::Input& input, bool has_samples) {
  const at::NoGradGuard no_grad;
  if (!has_samples) {
    forward(*state_, placeholder_batch(*state_), /*training=*/false, 0);
    return {};
  }
  if (!scale_.defined()) return forward(*state_, input, /*training=*/false, 0);
  state_->context = {false, 0, input.batch.samples};
  return state_->sharded->forward(input.images * scale_ + shift_);
}

}  // namespace tessera::eager
