// SPDX-License-Identifier: Apache-2.0
// The manifest: what manifest.json says, as a value. Pure but for read_stored. docs/checkpoints.md has the
// schema.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Of what is written. Schema 1, which is read as well, has no boxes: its regions are called slices.
inline constexpr int64_t kSchema = 2;

/// One shard file as it was written.
struct ShardFact {
  uint64_t bytes = 0;
  std::string checksum;
  std::string host = {};  // whose folder has it; empty: one folder has all
};

/// A region of a tensor, in the file of rank `shard`.
struct StoredRegion {
  int64_t shard = 0;
  Region region;
  std::vector<int64_t> copies = {};  // shards of other folders that have it as well
};

/// A manifest with the places of its tensors' regions.
struct StoredManifest {
  Manifest manifest;
  std::vector<ShardFact> shards;                   // by rank
  std::vector<std::vector<StoredRegion>> regions;  // by tensor: sorted, together the whole tensor
};

/// Text of manifest.json in schema kSchema, also where it was read from an older one; the last line holds the
/// checksum of all before it. Errors: UserError when a text of `progress` that must be JSON is none.
std::string manifest_text(const StoredManifest& stored);

/// Errors: UserError on broken JSON, a newer schema, regions that do not cover a tensor. Does not look at
/// the checksum. `where` names the file.
StoredManifest parse_manifest(std::string_view text, const std::string& where);

/// Reads and checks the manifest that all folders of a checkpoint have. Errors: as parse_manifest, and
/// UserError on a missing manifest, one that differs from its checksum or from that of another folder.
StoredManifest read_stored(const Folders& checkpoint);

/// The checksum that a checkpoint folder's manifest states of itself: equal for parts of one save.
std::string manifest_seal(const std::filesystem::path& checkpoint);

/// Elements of a tensor. Requires: a shape that fits 63 bits.
int64_t count_of(const std::vector<int64_t>& shape);
/// "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tessera::checkpoint
