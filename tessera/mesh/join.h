// SPDX-License-Identifier: Apache-2.0
// The ranks of one start of one run find each other in a store and compare what must be alike. Private to
// this room.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/mesh/store.h"

namespace tessera::mesh {

/// Another process has this rank in the start that `store` belongs to, for example one of an earlier start
/// that has not noticed yet that this rank was started again.
class RankIsTaken : public UserError {
 public:
  using UserError::UserError;
};

/// Waits until every rank of this start has come; returns the store for the keys of this start. Rank 0 draws
/// a random token, which is part of every key from then on: keys that an earlier start left in a store of a
/// launcher are never read. Collective. Errors: UserError on every rank that has come, where the world size
/// or a fact differs between ranks (names the fact, the values and the ranks); RankIsTaken; CommError where
/// ranks do not come within the time limit (names them, on every rank that has come).
StorePointer join_ranks(const StorePointer& store, const Rendezvous& rendezvous, const Facts& facts);

/// For a rank that cannot take part: the ranks of this start end with `text` as a UserError instead of
/// waiting for it. Waits up to 5 s for rank 0, and rank 0 as long for the others. Errors: CommError.
void refuse_start(const StorePointer& store, const Rendezvous& rendezvous, const std::string& text);

/// The text of a UserError of a process that could not join this start; empty: there is none.
std::string refusal_in(TimedStore& store);

/// "precision.compute is bf16 on rank 0 and fp32 on ranks 1, 3 (hint)": the first fact that differs, by the
/// facts of all ranks in their order; empty where none does. Of a value of several lines the first line that
/// differs is shown.
std::string difference_of(const std::vector<Facts>& of_ranks);

/// Facts as one text, and back. Errors: CommError on text that is none.
std::string to_text(const Facts& facts);
Facts facts_from_text(const std::string& text);

}  // namespace tessera::mesh
