// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/failure_report.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <fstream>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr auto kSettle = std::chrono::milliseconds(25);
constexpr auto kSettleOfInput = std::chrono::milliseconds(500);

bool is_wrong_input(const Ending& ending) { return ending.signal == 0 && ending.code == kExitUser; }

bool is_cause(const Ending& ending) { return ending.signal != 0 || ending.code != kExitCommunication; }

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  std::string text = concat("was killed by signal ", signal, " (", name == nullptr ? "" : "SIG",
                            name == nullptr ? "unknown" : name);
  if (signal == SIGKILL) text += "; the kernel's out-of-memory killer also does this: see dmesg";
  return text + ")";
}

}  // namespace

void FailureReport::add(const RankProcess& rank, Clock::time_point now) {
  if (dead_.empty()) first_ = now;
  if (is_cause(rank.ending())) first_cause_ = std::min(first_cause_, now);
  dead_.push_back(&rank);
}

Clock::time_point FailureReport::verdict_time(Clock::time_point latest) const {
  if (first_cause_ == Clock::time_point::max()) return latest;
  const RankProcess& found = culprit();
  const bool may_be_rank_0 = is_wrong_input(found.ending()) && found.rank() != 0;
  return std::min(first_cause_ + (may_be_rank_0 ? kSettleOfInput : kSettle), latest);
}

const RankProcess& FailureReport::culprit() const {
  const auto first = [&](auto condition) {
    const auto found =
        std::find_if(dead_.begin(), dead_.end(), [&](const auto* rank) { return condition(rank->ending()); });
    return found == dead_.end() ? nullptr : *found;
  };
  if (const auto* rank = first([](const Ending& ending) { return ending.signal != 0; })) return *rank;
  const auto* cause = first(is_cause);
  if (cause != nullptr && is_wrong_input(cause->ending())) {
    for (const auto* rank : dead_) {
      if (rank->rank() == 0 && is_wrong_input(rank->ending())) return *rank;
    }
  }
  if (cause != nullptr) return *cause;
  return *dead_.front();
}

const RankProcess* FailureReport::first_that_lost_another() const {
  const auto found = std::ranges::find_if(dead_, [](const auto* rank) { return !is_cause(rank->ending()); });
  return found == dead_.end() ? nullptr : *found;
}

std::string noticed_line(const RankProcess& rank, int64_t world) {
  const std::string words = rank.last_words();
  const size_t error = words.rfind("error: ");
  if (error == std::string::npos) return "";
  return concat("rank ", rank.rank(), " of ", world, " noticed it: ", words.substr(error));
}

std::string silence_line(const RankProcess& rank, int64_t world) {
  // The state is the first field behind the name (proc(5)), which may hold blanks and parentheses.
  std::ifstream file(concat("/proc/", rank.pid(), "/stat"));
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  const char state = name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
  const char* doing = state == 'T' || state == 't' ? "it is stopped (SIGSTOP, Ctrl-Z or a debugger)"
                      : state == 'D' ? "it waits inside the kernel, for a file system or a device"
                                     : "it still runs";
  return concat("rank ", rank.rank(), " of ", world, " (pid ", rank.pid(),
                ") does not answer the other ranks: ", doing);
}

bool is_told_by_rank_0(const RankProcess& culprit) {
  return culprit.rank() == 0 && is_wrong_input(culprit.ending());
}

std::string failure_line(const RankProcess& rank, int64_t world) {
  const Ending& ending = rank.ending();
  const std::string how =
      ending.signal != 0 ? signal_text(ending.signal) : concat("ended with exit code ", ending.code);
  const std::string words = ending.signal == SIGKILL ? "" : rank.last_words();
  // Wrong input says it all in its line, and the folder of a run that never began goes away with the log.
  const std::string source = ending.signal == 0 && ending.code == kExitUser
                                 ? "its last lines"
                                 : concat("last lines of ", rank.log().string());
  return concat("rank ", rank.rank(), " of ", world, " (pid ", rank.pid(), ") ", how,
                words.empty() ? "" : concat("; ", source, ": "), words);
}

}  // namespace tessera::launch
