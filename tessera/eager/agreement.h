// SPDX-License-Identifier: Apache-2.0
// What ranks compare before their first step (mesh::Facts): all that decides the numbers they compute
// together.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "tessera/data/source.h"
#include "tessera/loop/data_record.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

/// The recipe, the plan, the kind of device, the dtype that precision.compute resolves to there, and on a CPU
/// the kernels.
mesh::Facts computing_facts(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device);

/// Of the data that `setting` ("data.train") names: class names in label order, and split_facts().
mesh::Facts data_facts(const std::string& setting, const data::Source& source, const loop::SplitFacts& split);
mesh::Facts data_facts(const std::string& setting, const data::Source& source);

/// Of the weights that `setting` names by a path, if it is a file: its size, and a checksum of its beginning,
/// its end and windows between them (4 MiB at most). Of a checkpoint's folder: its manifest. Nothing of other
/// paths, such as runs.
mesh::Facts weights_facts(const std::string& setting, const std::filesystem::path& path);

/// What a command was asked for beside the recipe, as it would be typed: it decides which collectives there
/// are.
mesh::Fact command_fact(const std::string& command);

/// All of them, one after the other.
mesh::Facts joined_facts(std::initializer_list<mesh::Facts> parts);

}  // namespace tessera::eager
