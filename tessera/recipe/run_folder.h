// Where a run lives on disk.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// The folder for this run: run.dir where given, else runs/<name>, or runs/<name>-2, -3, ... where earlier
/// runs took the name. `resume` (the value of --resume, empty without):
/// the newest existing one, unless it is the path of a checkpoint outside run.dir, which starts a run of its
/// own. The variable TESSERA_RUN_DIR (set by the parent of local ranks, so that all agree) wins. Does not
/// create it. Errors: UserError when run.dir holds a run already and nobody asked to resume it: no run
/// overwrites another.
std::filesystem::path choose_run_folder(const Recipe& recipe, const std::string& resume);

}  // namespace tessera::recipe
