// SPDX-License-Identifier: Apache-2.0
// Plans of Galvatron (arXiv 2211.13878) as plans of this program. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/galvatron_settings.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// A plan of Galvatron for a model, and what it says that a plan here does not hold.
struct GalvatronImport {
  Plan plan;
  int64_t batch = 0;         // images of a step (train.batch); 0: not given
  int64_t accumulation = 0;  // without pipeline: micro-batches of a step (train.accumulation); 0: not given
};

/// Lays a model out as Galvatron does: its layer i is the block behind the stem and i blocks; stem and head
/// are whole layers of default_dp_type, as its embedding and classifier. Groups consist of the same ranks:
/// stages of a pipeline are ranks in order, and tensor groups neighbours where the consecutive flag is 1.
/// `ranks` 0: taken from world_size, or nproc_per_node times pp_deg. `where` (a path, or "") stands in
/// errors. Errors: UserError that names the setting and its value when it is unknown or missing, does not fit
/// the model or the ranks, or asks for what is not available (use_sp, vtp, vsp, cp, ep, embed_sdp).
GalvatronImport import_galvatron(const GalvatronSettings& settings, const arch::ModelConfig& config,
                                 int64_t ranks, const std::string& where);

/// Names of settings that import_galvatron refuses unless they are 0 (of degrees also 1).
std::vector<std::string> unavailable_galvatron_settings();

}  // namespace tessera::plan
