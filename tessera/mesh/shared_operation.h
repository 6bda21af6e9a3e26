// SPDX-License-Identifier: Apache-2.0
// What a collective through shared memory has sent and is still to get. Private to this room.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/mesh/row_shares.h"
#include "tessera/mesh/shared_segment.h"

namespace tessera::mesh {

/// Bytes of an operation's input or output.
struct Slice {
  size_t at = 0, bytes = 0;
};

/// Of an exchange, by rank: what goes to it, and what comes from it.
struct Slices {
  Slices(const Splits& splits, size_t rank, size_t element_bytes) {
    for (size_t i = 0; i < splits.size(); ++i) {
      append(sent, static_cast<size_t>(splits[rank][i]) * element_bytes);
      append(received, static_cast<size_t>(splits[i][rank]) * element_bytes);
      for (size_t j = 0; j < splits.size(); ++j) {
        if (i != j) largest = std::max(largest, static_cast<size_t>(splits[i][j]) * element_bytes);
      }
    }
  }
  static void append(std::vector<Slice>& slices, size_t bytes) {
    slices.push_back({slices.empty() ? 0 : slices.back().at + slices.back().bytes, bytes});
  }

  std::vector<Slice> sent, received;
  size_t largest = 0;  // of any two ranks: the same on all
};

/// One collective. Its bytes travel as messages: message c holds columns [c * width, (c + 1) * width) of a
/// row of `row_bytes` for each receiver, the same row for all in a gather.
struct Operation {
  at::Tensor output, input;                   // kept alive
  size_t row_bytes = 0;                       // of what one rank sends another, at most
  bool sums = false;                          // rows are added up in output, else one after another
  std::shared_ptr<const Slices> slices = {};  // null: all rows have row_bytes
  uint32_t label = 0;                         // of the collective
  uint64_t first = 0;                         // number of its first message; the same on all ranks
  uint64_t messages = 0;                      // of each rank
  uint64_t published = 0;
  uint64_t missing = 0;  // messages of other ranks that are still to come; those that are added up as one
  bool ended() const { return published == messages && missing == 0; }
  Slice sent_to(size_t rank) const { return slices ? slices->sent[rank] : row_of(rank); }
  Slice received_from(size_t rank) const { return slices ? slices->received[rank] : row_of(rank); }
  Slice row_of(size_t rank) const { return {rank * row_bytes, row_bytes}; }
  /// What every rank must say of this operation.
  uint64_t tag() const { return uint64_t{row_bytes} << 1 | (sums ? 1 : 0); }
};

/// All operations of one kind, as one sequence of messages.
struct Channel {
  uint64_t begun = 0, published = 0;            // messages
  std::vector<uint64_t> taken;                  // by rank that sent them
  std::array<uint64_t, kSlots> last_message{};  // in each slot, + 1
  std::deque<std::shared_ptr<Operation>> under_way;

  Operation& operation_of(uint64_t message) {
    const auto it = std::find_if(under_way.begin(), under_way.end(), [message](const auto& operation) {
      return message < operation->first + operation->messages;
    });
    TESSERA_CHECK(it != under_way.end());
    return **it;
  }
};

}  // namespace tessera::mesh
