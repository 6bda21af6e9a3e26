// SPDX-License-Identifier: Apache-2.0
// The index files of DALI's webdataset reader, as its tool wds2idx writes them. Pure function, safe from any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct DaliMember {
  std::string_view ending, name;  // "jpg", "000001.jpg"; the name is empty in version 1.1
  uint64_t offset = 0, size = 0;  // of its content in the tar file
};

/// Reads "v1.2 <samples>", then a line for each sample: "ending offset size name" of each member ("v1.1": no
/// names). Returns what is wrong, "" if nothing: then `visit` was called for each sample.
std::string read_dali_index(std::string_view text,
                            const std::function<void(std::span<const DaliMember>)>& visit);

}  // namespace tessera::data
