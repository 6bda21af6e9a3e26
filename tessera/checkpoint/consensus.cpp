// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/consensus.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr char kDone = '+', kFailed = '-', kEnd = '\n';  // an answer is: host, line end, how it went, text

std::string system_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

Consensus::Consensus(const Ranks& ranks, std::string where, std::string problem)
    : ranks_(ranks),
      where_(std::move(where)),
      problem_(std::move(problem)),
      host_(ranks.host.empty() ? system_host() : ranks.host) {}

std::string Consensus::name(size_t rank) const {
  const bool one_host =
      std::all_of(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h == hosts_[0]; });
  return concat("rank ", rank, " of ", ranks_.world, one_host ? "" : " on host " + hosts_.at(rank));
}

std::vector<std::string> Consensus::settle(const Answer& mine, const std::string& consequence) {
  const std::string packed = host_ + kEnd + (mine.failed ? kFailed : kDone) + mine.text;
  const bool alone = ranks_.world == 1 && !ranks_.all_gather;
  auto answers = alone ? std::vector<std::string>{packed} : ranks_.all_gather(packed);
  TESSERA_CHECK_EQ(static_cast<int64_t>(answers.size()), ranks_.world);
  hosts_.clear();
  std::vector<size_t> failed;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const size_t end = answers[rank].find(kEnd);
    TESSERA_CHECK(end != std::string::npos && end + 1 < answers[rank].size(), "answer of rank ", rank);
    hosts_.push_back(answers[rank].substr(0, end));
    if (answers[rank][end + 1] == kFailed) failed.push_back(rank);
    answers[rank].erase(0, end + 2);
  }
  if (!failed.empty()) {
    const auto others =
        failed.size() == 1 ? std::string() : concat(" (", failed.size(), " ranks failed in all)");
    user_error({.where = where_,
                .problem = concat(problem_, ": ", name(failed[0]), " failed: ", answers[failed[0]], others),
                .hint = consequence});
  }
  return answers;
}

}  // namespace tessera::checkpoint
