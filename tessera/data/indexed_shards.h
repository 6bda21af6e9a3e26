// SPDX-License-Identifier: Apache-2.0
// What sources of several shards share: wds and tfrecord.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/index_builder.h"
#include "tessera/data/indexed_source.h"

namespace tessera::data {

inline constexpr uint8_t kGzipped = 1;  // IndexedSample::method of samples that lie in a gzip file
/// Content between the restart points of a gzip file: 32 KiB of index for each, and half of this on average
/// is unpacked in vain before a sample.
inline constexpr uint64_t kRestartSpan = uint64_t{1} << 20;

/// A sample's bytes; of a gzip file unpacked from the restart point before them. Errors: UserError that names
/// the archive when it is damaged or shorter than it was.
std::string read_sample(const SampleIndex& index, const ByteSource& archive, const IndexedSample& sample);

/// A request for an index of shards: they and the file with class names are its inputs. `build` is left open.
IndexRequest shard_request(const std::string& kind, const std::vector<std::filesystem::path>& shards,
                           const std::string& split, const std::string& settings,
                           const std::optional<std::filesystem::path>& class_file);

/// Indexes the shards in parallel, each into a part of its own, and puts the parts together in order.
/// `classes`: names, or none: numbers up to the largest label.
void build_from_shards(const std::vector<std::filesystem::path>& shards, std::vector<std::string> classes,
                       const std::function<void(size_t, IndexBuilder&)>& index_shard, IndexBuilder& builder);

}  // namespace tessera::data
