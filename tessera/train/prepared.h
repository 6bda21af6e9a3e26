// SPDX-License-Identifier: Apache-2.0
// A training before its first step: what is known of it, and what is said of it.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/data/source.h"
#include "tessera/eager/device.h"
#include "tessera/loop/data_record.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/parameter_groups.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/entry.h"

namespace tessera::train {

/// Everything known before the first step.
struct Prepared {
  TrainJob job;
  launch::Ranks ranks;
  int64_t threads = 1;
  at::Device device = at::kCPU;
  std::filesystem::path run_dir, checkpoints;
  plan::Plan plan;
  recipe::BatchSizes sizes;
  recipe::StepCounts counts;
  std::unique_ptr<data::Source> train, val;
  data::LoaderOptions loader;
  loop::DataRecord data;  // what checkpoints of this run say of it; read by record_data()
  double peak_tflops = 0;
  eager::DeviceChoices choices;
  double predicted_bytes = 0;     // memory of a rank, as predicted_memory() says
  bool stalled = false;           // loop::LoopResult's
  int64_t program_bytes = 0;      // resident when the facts were first told
  int64_t idle_bytes = 0;         // resident before the model is built: the program, LibTorch, threads
  int64_t idle_shared_bytes = 0;  // of them, of shared memory
  std::vector<recipe::ParameterGroups::Match> groups;
};

/// Opens the sources, counts the steps, and gives `loader` its batch and accumulation. Requires: job, ranks,
/// plan, loader.warn. Errors: UserError of the data, of the batch, of more classes than the model has.
void open_data(Prepared& p);

/// Fills `data`: reads the samples' names and labels, which takes half a second for a million.
void record_data(Prepared& p);

/// Errors: UserError where the data have more classes than the model has outputs.
void check_classes(const data::Source& source, const recipe::Recipe& recipe);

/// What optimizer.groups names. Errors: UserError where a pattern fits nothing, or all parameters are frozen.
std::vector<recipe::ParameterGroups::Match> matched_groups(const recipe::Recipe& recipe);

/// Names and values for people: on the console, in the log, in the report.
std::vector<std::pair<std::string, std::string>> facts(const Prepared& p);

/// Prints them, and warns of what is odd among them. Sets program_bytes.
void print_facts(Prepared& p, Log& log);

}  // namespace tessera::train
