// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/dry_run.h"

#include <filesystem>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/eager/init_from.h"
#include "tessera/eager/teacher.h"
#include "tessera/recipe/run_folder.h"
#include "tessera/train/resume.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

/// The checkpoint that --resume would take; none where the run would start anew.
std::optional<fs::path> find_resumed(const Prepared& p, const fs::path& run_dir, Log& log) {
  const std::string& own = p.job.recipe.checkpoint.dir;
  const fs::path name = run_dir / "checkpoints";
  const fs::path folder = own.empty() || fs::exists(name) ? name : fs::path(own);
  const auto choice = choose_to_resume(p.job, folder, {});
  if (choice && !choice->passed_over.empty()) log.warn(checkpoint::passed_over_text(*choice));
  if (!choice && p.job.must_resume) {
    user_error({.where = "train.resume",
                .problem = concat("found no checkpoint in ", folder.string()),
                .expected = "a saved state of that run",
                .hint = "start anew with a recipe"});
  }
  return choice ? std::optional(choice->path) : std::nullopt;
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
        report_differences(p, manifest, log);
        if (!recipe.distill.teacher.empty()) eager::check_teacher(recipe, log, p.train->classes());
        return;
      }
      log.info(concat("  resumed from: nothing, the run would start anew"));
    }
  }
  if (!recipe.train.init_from.empty()) eager::check_init_from(recipe, log, p.train->classes());
  if (!recipe.distill.teacher.empty()) eager::check_teacher(recipe, log, p.train->classes());
}

}  // namespace tessera::train
