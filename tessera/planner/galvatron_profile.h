// SPDX-License-Identifier: Apache-2.0
// Profiles of Galvatron (arXiv 2211.13878) as profiles of this program, and back. docs/from_galvatron.md
// lists every key with its unit and what it becomes. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/profile.h"

namespace tessera::planner {

/// One file, read or to be written. The end of a name says hosts or dtype.
struct GalvatronFile {
  std::string name;  // path of a file that was read, for errors; or the name of a file to write
  std::string text;  // JSON
};

/// Files that Galvatron's profilers wrote, and what they do not say.
struct GalvatronProfileFiles {
  std::vector<GalvatronFile> hardware;  // bandwidths, times of messages, overlap coefficient: in any order
  GalvatronFile computation;
  std::optional<GalvatronFile> memory;  // only compared with the model
  arch::ModelConfig model;
  int64_t ranks_of_host = 0;  // 0: of the names of the hardware files, or one host
  std::string compute;        // dtype, where the name of the computation file has none: "bf16"; "": not known
};

struct ImportedProfile {
  Profile profile;
  std::vector<std::string> notes;  // a line each: what was assumed, is not in the files or has no counterpart
};

/// A machine, build and date are not in the files: these fields of the provenance are empty. Errors:
/// UserError that names the file, the key and its value: text that is no JSON, unknown keys and keys that are
/// given twice; values that are no numbers or not in range; times of another sequence length or of several
/// types of layers; blocks of another size; groups that do not fit the ranks; no all-reduce or no layer time.
ImportedProfile import_galvatron_profile(const GalvatronProfileFiles& files);

struct ExportedProfile {
  std::vector<GalvatronFile> files;
  std::vector<std::string> notes;  // a line each: what is not written, and why
};

/// Files with Galvatron's names and keys. `model_name`: part of the name of the computation file. Errors:
/// UserError when the model has several kinds of blocks, or the profile no times of them.
ExportedProfile export_galvatron_profile(const Profile& profile, const std::string& model_name);

}  // namespace tessera::planner
