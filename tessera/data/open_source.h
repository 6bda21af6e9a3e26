// SPDX-License-Identifier: Apache-2.0
// The kinds of source behind open_source; one file each.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

std::unique_ptr<Source> open_idx(const std::filesystem::path& folder, const std::string& split,
                                 const SourceOptions& options);
bool holds_idx_files(const std::filesystem::path& folder, const SourceOptions& options);
std::unique_ptr<Source> open_folder(const std::filesystem::path& folder, const std::string& split,
                                    const SourceOptions& options);
std::unique_ptr<Source> open_zip(const std::filesystem::path& folder, const std::string& split,
                                 const SourceOptions& options);
/// `shards`: see shard_list.h.
std::unique_ptr<Source> open_wds(const std::string& shards, const std::string& split,
                                 const SourceOptions& options);
/// `path`: a TFDS folder, else shards.
std::unique_ptr<Source> open_tfrecord(const std::string& path, const std::string& split,
                                      const SourceOptions& options);
/// `path`: the folder of the binary version, or its archive.
std::unique_ptr<Source> open_cifar(const std::filesystem::path& path, const std::string& split,
                                   const SourceOptions& options);
/// `count`: the number of images as text, "" for 1280.
std::unique_ptr<Source> open_fake(const std::string& count, const std::string& split,
                                  const SourceOptions& options);

/// .jpg, .jpeg or .png in any case.
bool is_image_name(std::string_view name);
/// The names that data may have for a split, the best first: "val" also finds "validation", else "test".
std::vector<std::string> accepted_splits(const std::string& split);

}  // namespace tessera::data
