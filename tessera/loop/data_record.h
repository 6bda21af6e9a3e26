// SPDX-License-Identifier: Apache-2.0
// What a checkpoint says of the data of its run: a resumed run compares it with its own data and goes on from
// its position.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "tessera/data/loader.h"
#include "tessera/data/source.h"

namespace tessera::loop {

/// Of one split of the data: what ranks compare, and what a resumed run compares with its checkpoint.
struct SplitFacts {
  int64_t samples = 0;
  std::string checksum = {};  // of the samples' names and labels in their order
  std::string labels = {};    // checksum of the labels alone; empty: not known
  bool operator==(const SplitFacts&) const = default;
};
/// Of more than a million samples the checksum is that of a million that are evenly spaced. Opens no sample.
SplitFacts split_facts(const data::Source& source);

struct DataRecord {
  SplitFacts train, val;
  int64_t batch = 0, accumulation = 0;  // of a step, as recipe::resolve_batch() gave them
  data::StreamPosition position;        // of the sample to train on next
};

nlohmann::json to_json(const DataRecord& record);
/// None where `json` holds no record that can be true: checkpoints of versions before there was one.
std::optional<DataRecord> parse_data_record(const nlohmann::json& json);

}  // namespace tessera::loop
