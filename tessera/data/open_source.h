// The kinds of source behind open_source; one file each.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tessera/data/source.h"

namespace tessera::data {

std::unique_ptr<Source> open_idx(const std::filesystem::path& folder, const std::string& split);
bool holds_idx_files(const std::filesystem::path& folder);
std::unique_ptr<Source> open_folder(const std::filesystem::path& folder, const std::string& split);
/// `count`: the number of images as text, "" for 1280.
std::unique_ptr<Source> open_fake(const std::string& count, const std::string& split,
                                  const SourceOptions& options);

}  // namespace tessera::data
