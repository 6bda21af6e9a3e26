// SPDX-License-Identifier: Apache-2.0
// MATLAB's level 5 MAT-files, as far as lists of records need: numbers, text, structs, packed or not.
// Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera::formats {

/// An array of a MAT-file, elements in column-major order.
struct MatArray {
  enum class Kind { kNumbers, kText, kStruct, kOther };
  Kind kind = Kind::kOther;
  std::vector<int64_t> dims;
  std::vector<double> numbers;                          // kNumbers
  std::string text;                                     // kText: UTF-8
  std::map<std::string, std::vector<MatArray>> fields;  // kStruct: of each field a value per element
};

/// The variables of a file, by name. Cells, objects and sparse arrays are kOther, without content.
/// Reference: "MAT-File Format", The MathWorks, version 5. Errors: UserError that names `name` and what was
/// found: no such file, other byte order, cut off, nested deeper than 8 or larger than `max_bytes` unpacked.
std::map<std::string, MatArray> parse_matlab(std::span<const uint8_t> bytes, const std::string& name,
                                             uint64_t max_bytes = uint64_t{1} << 28);

}  // namespace tessera::formats
