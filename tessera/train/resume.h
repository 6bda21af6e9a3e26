// SPDX-License-Identifier: Apache-2.0
// A run that goes on: which checkpoint it takes, what differs from the saved run, and where in the data it
// stands.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// What is compared with the saved run. The only table of it; docs/running.md shows the same.
enum class Compared {
  kClassOrder,
  kClasses,
  kTrainSamples,
  kTrainNames,
  kValSamples,
  kValNames,
  kBatch,
  kAccumulation,
  kSetting
};
struct ResumeRule {
  Compared what;
  const char* name;         // as in the documentation
  bool refused;             // else warned about
  const char* consequence;  // what the run does with the difference
};
std::span<const ResumeRule> resume_rules();

/// A difference from the saved run, under the rule for it.
struct Difference {
  Compared what;
  std::string text;  // "15 -> 45 training images"
};
/// `saved_classes`: names of the validation data's classes. `saved`: none in checkpoints of older versions,
/// of which only the classes are compared.
std::vector<Difference> differences(const std::optional<loop::DataRecord>& saved,
                                    const std::vector<std::string>& saved_classes,
                                    const loop::DataRecord& now, const std::vector<std::string>& classes);

/// Where the data of a run that was saved after `step` steps go on. With a different number of samples the
/// place is that after as many samples of the present data. `saved_batch`: the one that the saved recipe
/// resolved to, for checkpoints without a record.
data::StreamPosition position_to_resume(const std::optional<loop::DataRecord>& saved, int64_t step,
                                        int64_t saved_batch, data::Remainder saved_remainder,
                                        const loop::DataRecord& now, data::Remainder remainder);

/// The checkpoint that --resume takes; nothing where the run starts anew. `checkpoints`: the run's.
/// Collective over `ranks`. Errors: as checkpoint::choose().
std::optional<checkpoint::Choice> choose_to_resume(const TrainJob& job,
                                                   const std::filesystem::path& checkpoints,
                                                   const checkpoint::Ranks& ranks);

/// For a dry run: warns of what differs between the data of `saved` and `p.data`. Errors: UserError of what
/// ResumeRule refuses.
void report_differences(const Prepared& p, const checkpoint::Manifest& saved, Log& log);

/// Puts saved state into `state` and its `backend`, compares it with `p.data`, and sets p.loader.start and
/// p.counts. Returns the checkpoint's folder, empty when there was none. Collective. Errors: UserError of
/// what ResumeRule refuses, of checkpoints that cannot be read, of a named run without any.
std::filesystem::path resume(Prepared& p, eager::TrainState& state, eager::Backend& backend, mesh::Mesh& mesh,
                             Log& log);

}  // namespace tessera::train
