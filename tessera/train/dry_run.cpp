// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/dry_run.h"

#include <filesystem>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/recipe/run_folder.h"
#include "tessera/train/init_from.h"
#include "tessera/train/teacher.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

/// The checkpoint that --resume would take; none where the run would start anew.
std::optional<fs::path> find_resumed(const Prepared& p, const fs::path& run_dir, Log& log) {
  const std::string& resume = p.job.resume;
  const std::string& own = p.job.recipe.checkpoint.dir;
  const bool is_path = !checkpoint::names::is_of_the_run(resume) && fs::is_directory(resume);
  const fs::path folder = is_path ? fs::path(resume) : !own.empty() ? fs::path(own) : run_dir / "checkpoints";
  std::error_code ignored;
  std::optional<fs::path> found;
  if (fs::is_directory(folder, ignored)) {
    const auto on_damage = p.job.recipe.checkpoint.on_damage == "fail" ? checkpoint::OnDamage::kFail
                                                                       : checkpoint::OnDamage::kFallBack;
    if (const auto choice = checkpoint::choose(folder, resume, on_damage)) {
      if (!choice->passed_over.empty()) log.warn(checkpoint::passed_over_text(*choice));
      found = choice->path;
    }
  }
  if (!found && p.job.must_resume) {
    user_error({.where = "train.resume",
                .problem = concat("found no checkpoint in ", folder.string()),
                .expected = "a saved state of that run",
                .hint = "start anew with a recipe"});
  }
  return found;
}

}  // namespace

void check_what_opens(const Prepared& p, Log& log) {
  const recipe::Recipe& recipe = p.job.recipe;
  if (!p.ranks.pretended()) {
    const fs::path run_dir = recipe::check_run_folder(recipe, p.job.resume);
    log.info(concat("  run folder: ", run_dir.string()));
    if (!p.job.resume.empty()) {
      if (const auto found = find_resumed(p, run_dir, log)) {
        const auto manifest = checkpoint::read_manifest(*found);
        log.info(concat("  resumed from: ", found->string(), ", step ", manifest.progress.step));
        const recipe::Recipe saved = recipe::parse_recipe(manifest.progress.recipe_toml, "manifest", ".", {});
        for (const std::string& line : recipe::difference(saved, recipe)) {
          if (!line.starts_with("run.dir:")) log.warn(concat("differs from the saved run: ", line));
        }
        if (!recipe.distill.teacher.empty()) check_teacher(recipe, log, p.train->classes());
        return;
      }
      log.info(concat("  resumed from: nothing, the run would start anew"));
    }
  }
  if (!recipe.train.init_from.empty()) check_init_from(recipe, log, p.train->classes());
  if (!recipe.distill.teacher.empty()) check_teacher(recipe, log, p.train->classes());
}

}  // namespace tessera::train
