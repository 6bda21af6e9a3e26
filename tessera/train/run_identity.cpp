// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run_identity.h"

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/surroundings.h"
#include "tessera/loop/folder_fault.h"
#include "tessera/train/environment.h"

namespace tessera::train {
namespace fs = std::filesystem;

recipe::RunFolder agree_on_run_folder(const Prepared& p, mesh::Mesh& mesh) {
  recipe::RunFolder folder;
  if (p.ranks.speaks()) {
    recipe::Recipe named = p.job.recipe;
    if (p.ranks.pretended()) named.name += "-pretended";
    folder = recipe::claim_run_folder(named, p.job.resume);
  }
  const std::string path = mesh.world().all_gather_text(folder.path.string(), "run folder").front();
  if (!p.ranks.speaks()) folder = recipe::create_run_folder(path);
  return folder;
}

std::optional<FileLock> hold_checkpoints(const Prepared& p, mesh::Mesh& mesh) {
  std::optional<FileLock> lock;
  std::string holder;
  const auto agree = [&](bool mine) {
    std::string error;
    try {
      if (mine) lock = recipe::lock_checkpoints(p.job.recipe, p.run_dir, holder);
    } catch (const UserError& failed) {
      error = failed.what();
    }
    for (const std::string& text : mesh.world().all_gather_text(error, "lock of the checkpoints"))
      if (!text.empty()) throw UserError(text);
  };
  if (mesh.rank() == 0) {
    holder = concat("the run in ", p.run_dir.string(), " (process ", ::getpid(), " on host ",
                    launch::host_name(), ")");
  }
  holder = mesh.world().all_gather_text(holder, "run").front();
  agree(mesh.rank() == 0);
  agree(mesh.rank() != 0 && p.ranks.local_rank == 0);  // of hosts with folders of their own
  return lock;
}

HeldFolders::HeldFolders(const recipe::RunFolder& folder, const std::optional<FileLock>& checkpoints)
    : path_(folder.path), folder_(folder.locked) {
  if (checkpoints) checkpoints_ = checkpoints->file();
}

std::string HeldFolders::fault() const {
  std::string text = folder_ ? recipe::folder_fault(path_, *folder_) : "";
  if (text.empty() && checkpoints_) text = recipe::checkpoints_fault(*checkpoints_);
  return text;
}

void HeldFolders::check(mesh::Mesh& mesh) const {
  eager::MeshWorld world(mesh);
  loop::check_folders(world, [this] { return fault(); });
}

void clear_leftovers(const fs::path& checkpoints) {
  try {
    checkpoint::clear_leftovers(checkpoints);
  } catch (const UserError&) {
    return;
  }
}

checkpoint::SavedBy identify_run(const Prepared& p, const checkpoint::SavedBy& saved_by,
                                 const fs::path& resumed, mesh::Mesh& mesh) {
  std::string id;
  if (mesh.rank() == 0) {
    id = checkpoint::run_id(p.run_dir);
    if (id.empty() && !resumed.empty() && resumed.parent_path() == fs::absolute(p.checkpoints))
      id = saved_by.id;
    if (id.empty()) id = checkpoint::new_run_id();
  }
  id = mesh.world().all_gather_text(id, "run id").front();
  if (p.ranks.local_rank == 0 && checkpoint::run_id(p.run_dir) != id)
    write_file_atomic(p.run_dir / checkpoint::kRunId, id + "\n");
  return {id, p.run_dir.string()};
}

void tell_environment(const Prepared& p, Log& log) {
  const fs::path file = p.run_dir / "environment.json";
  const std::string now = environment_json(p.ranks, p.threads);
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    for (const std::string& line : launch::changes_since(read_file(file), now)) {
      log.warn(concat("since this run was last started: ", line));
    }
  }
  write_file_atomic(file, now);
}

}  // namespace tessera::train
