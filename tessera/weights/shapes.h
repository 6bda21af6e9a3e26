// SPDX-License-Identifier: Apache-2.0
// Sizes of a model from the shapes of its tensors. Private to this room. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "tessera/weights/family.h"

namespace tessera::weights {

/// Null where there is none.
const Shape* find_shape(const Named& tensors, const std::string& name);
/// Errors: UserError when there is none or it has another number of dims.
const Shape& need_shape(const Named& tensors, const std::string& name, size_t dims);
/// Blocks "<prefix>0<suffix>", "<prefix>1<suffix>", ... Errors: UserError when there is none.
int64_t count_blocks(const Named& tensors, const std::string& prefix, const std::string& suffix);
/// What stands before `end` in the name of the first tensor that ends with it, where every tensor's name
/// begins with that ("module.", "net.0."); "" otherwise.
std::string common_prefix(const checkpoint::TensorSource& source, std::string_view end);
/// Patches along a side, of so many position rows, the first of which may be those of `prefix` other tokens.
/// Errors: UserError when neither is a square.
struct Grid {
  int64_t side = 0;
  int64_t prefix_rows = 0;  // rows before those of the patches
};
Grid grid_of(int64_t rows, int64_t prefix_tokens, const std::string& where);
/// As asked for, else those of a named size of this width and depth, else 64 wide. Errors: UserError.
int64_t heads_of(const arch::VitConfig& config, const FamilyOptions& options, Description& description,
                 const std::string& where);
/// Errors: UserError that names `where`; a config without a head is checked as one with a class.
void check_config(const arch::VitConfig& config, const std::string& where);
/// The parameters that are linked: without those of the head where the file has none.
Mapping mapping_of(const arch::VitConfig& config);
/// Our pos_embed from their rows; rows that they do not have (of a class token, of registers) become zeros.
/// `their_rows`: before the patches' rows.
void link_positions(Mapping& mapping, const arch::VitConfig& config, const std::string& theirs,
                    int64_t their_rows);

}  // namespace tessera::weights
