#include "tessera/recipe/run_folder.h"

#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera::recipe {
namespace fs = std::filesystem;
namespace {

bool holds_a_run(const fs::path& folder) { return fs::exists(folder / "recipe.toml"); }

/// "latest", "best" and steps are those of the run itself; a path is only when it lies in run.dir.
bool continues_its_run(const Recipe& recipe, const std::string& resume) {
  if (resume.empty() || !fs::is_directory(resume)) return !resume.empty();
  if (recipe.run.dir.empty()) return false;
  const auto within = fs::weakly_canonical(resume).lexically_relative(fs::weakly_canonical(recipe.run.dir));
  return !within.empty() && *within.begin() != "..";
}

}  // namespace

fs::path choose_run_folder(const Recipe& recipe, const std::string& resume) {
  const bool resuming = continues_its_run(recipe, resume);
  if (const char* chosen = std::getenv("TESSERA_RUN_DIR"); chosen != nullptr && *chosen != '\0')
    return chosen;
  if (!recipe.run.dir.empty()) {
    if (!resuming && holds_a_run(recipe.run.dir)) {
      user_error("train.folder", "a folder without a run: ", recipe.run.dir,
                 " holds one (continue it with --resume, or set another run.dir)");
    }
    return fs::absolute(recipe.run.dir);
  }
  const auto numbered = [&](int number) {
    return fs::path("runs") / (number == 1 ? recipe.name : concat(recipe.name, "-", number));
  };
  int next = 1;
  while (holds_a_run(numbered(next))) ++next;
  return fs::absolute(resuming && next > 1 ? numbered(next - 1) : numbered(next));
}

}  // namespace tessera::recipe
