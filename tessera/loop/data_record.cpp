// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/data_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/checksum.h"

namespace tessera::loop {
namespace {

constexpr int64_t kMostSamples = 1'000'000;  // whose names are read; about half a second

nlohmann::json to_json(const SplitFacts& split) {
  return {{"samples", split.samples}, {"checksum", split.checksum}, {"labels", split.labels}};
}

SplitFacts parse_split(const nlohmann::json& json) {
  return {json.at("samples").get<int64_t>(), json.at("checksum").get<std::string>(),
          json.value("labels", std::string())};
}

}  // namespace

SplitFacts split_facts(const data::Source& source) {
  TextChecksum checksum, labels;
  const int64_t step = std::max<int64_t>(1, source.size() / kMostSamples);
  for (int64_t i = 0; i < source.size(); i += step) {
    checksum.add(source.sample_name(i));
    checksum.add(std::to_string(source.label(i)));
    labels.add(std::to_string(source.label(i)));
  }
  return {source.size(), checksum.hex(), labels.hex()};
}

nlohmann::json to_json(const DataRecord& record) {
  return {{"epoch", record.position.epoch}, {"index", record.position.index},
          {"batch", record.batch},          {"accumulation", record.accumulation},
          {"train", to_json(record.train)}, {"val", to_json(record.val)}};
}

std::optional<DataRecord> parse_data_record(const nlohmann::json& json) {
  if (!json.is_object()) return std::nullopt;
  DataRecord record;
  try {
    record.position = {json.at("epoch").get<int64_t>(), json.at("index").get<int64_t>()};
    record.batch = json.at("batch").get<int64_t>();
    record.accumulation = json.at("accumulation").get<int64_t>();
    record.train = parse_split(json.at("train"));
    record.val = parse_split(json.at("val"));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  const auto& [epoch, index] = record.position;
  const bool possible = epoch >= 0 && index >= 0 && index <= record.train.samples && record.batch > 0;
  return possible ? std::optional(record) : std::nullopt;
}

}  // namespace tessera::loop
