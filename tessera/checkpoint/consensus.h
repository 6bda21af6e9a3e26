// SPDX-License-Identifier: Apache-2.0
// Work that all ranks do together: each rank runs it, then every rank knows every rank's answer, or every
// rank throws the same error. Private to the room; collective.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

class Consensus {
 public:
  /// `where` and `problem` begin every error: "[where] problem: rank 1 of 2 failed: ...".
  Consensus(const Ranks& ranks, std::string where, std::string problem);

  /// Runs `work` on this rank and gathers the texts that it returns, in rank order. A failure anywhere
  /// becomes one UserError everywhere whose hint is `consequence`.
  template <typename Work>
  std::vector<std::string> all(const Work& work, const std::string& consequence) {
    return settle(attempt(work), consequence);
  }

  const Ranks& ranks() const { return ranks_; }
  /// "rank 1 of 2", and " on host b" where the ranks are on several hosts. Known after the first answers.
  std::string name(size_t rank) const;
  const std::vector<std::string>& hosts() const { return hosts_; }
  const std::string& where() const { return where_; }

 private:
  struct Answer {
    bool failed = false;
    std::string text;
  };

  template <typename Work>
  static Answer attempt(const Work& work) {
    try {
      return {false, work()};
    } catch (const std::bad_alloc&) {
      return {true, "out of memory"};
    } catch (const std::exception& error) {
      return {true, error.what()};
    }
  }
  std::vector<std::string> settle(const Answer& mine, const std::string& consequence);

  const Ranks& ranks_;
  std::string where_, problem_, host_;
  std::vector<std::string> hosts_;  // by rank
};

}  // namespace tessera::checkpoint
