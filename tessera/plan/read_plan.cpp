// SPDX-License-Identifier: Apache-2.0
// A plan file for a run.
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

namespace {

std::string text_of(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const UserError& error) {
    throw UserError(
        concat(with_location(error.what(), "parallel.plan"),
               "; set it to a plan file: a run that used one has the same plan in its plan.json"));
  }
}

}  // namespace

Plan read_plan(const std::filesystem::path& path, const arch::ModelConfig& config, int64_t world) {
  const Plan plan = plan_from_json(text_of(path), path.string());
  if (plan.world != world) {
    user_error({.where = "plan.read_plan",
                .problem = concat("\"world\" is ", plan.world, " (", path.string(), ")"),
                .expected = concat(world, ", the number of ranks of this run"),
                .hint = concat("start ", plan.world, plan.world == 1 ? " rank" : " ranks",
                               " with --procs, srun or torchrun; or search a plan for ", world)});
  }
  try {
    check_units("plan.read_plan", config, plan);
  } catch (const UserError& error) {
    throw UserError(with_location(error.what(), path.string()));
  }
  return plan;
}

}  // namespace tessera::plan
