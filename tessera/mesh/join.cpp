// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/join.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/random_token.h"
#include "tessera/base/text.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr char kEndOfField = '\x1f';
constexpr size_t kRanksListed = 8;  // of those that have one value
constexpr size_t kMostShown = 120;  // characters of a value
constexpr const char* kWhere = "[mesh.connect] ";
constexpr const char* kTimedOut = "timed out";  // key of what rank 0 missed
constexpr Milliseconds kTelling{5'000};         // for a rank that cannot start to find the others

std::string seconds_text(Milliseconds time) {
  return concat(static_cast<double>(time.count()) / 1000.0, " s");
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::vector<std::string> numbers;
  for (size_t i = 0; i < std::min(ranks.size(), kRanksListed); ++i)
    numbers.push_back(std::to_string(ranks[i]));
  if (ranks.size() > kRanksListed) numbers.push_back(concat("and ", ranks.size() - kRanksListed, " more"));
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(numbers, ", "));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string shown(const std::string& value) {
  if (value.empty()) return "empty";
  return value.size() <= kMostShown ? value : value.substr(0, kMostShown) + "...";
}

/// A line of a recipe without the comment that explains its key.
std::string without_comment(const std::string& line) {
  const size_t comment = line.find("  # ");
  return comment == std::string::npos ? line : line.substr(0, line.find_last_not_of(' ', comment) + 1);
}

/// The lines of two values that stand where they first differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const auto of_a = lines_of(a), of_b = lines_of(b);
  if (of_a.size() <= 1 && of_b.size() <= 1) return {shown(a), shown(b)};
  size_t i = 0;
  while (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? lines[i] : std::string();
  };
  const std::string whole_a = line(of_a), whole_b = line(of_b);
  const bool in_comment = without_comment(whole_a) == without_comment(whole_b);
  const auto quoted = [&](const std::string& text) {
    return text.empty() ? std::string("nothing there")
                        : concat("'", shown(in_comment ? text : without_comment(text)), "'");
  };
  return {quoted(whole_a), quoted(whole_b)};
}

class Joining {
 public:
  Joining(const StorePointer& store, const Rendezvous& rendezvous, const Facts& facts)
      : root_(store->within("start")), rendezvous_(rendezvous), facts_(facts) {}

  StorePointer run() {
    if (is_first()) begin_start();
    // Each is false where rank 0 has begun another start meanwhile, so that this one is over.
    while (!((is_first() || find_start()) && announce() && compare())) {
    }
    return store_;
  }

  void refuse(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + kTelling;
    const auto wait_until = [&](const auto& look) {
      while (!look() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(Milliseconds(50));
    };
    if (is_first()) {
      begin_start();
    } else {
      wait_until([&] { return root_->check({"token"}); });
      use_token(root_->get_to_str("token"));
    }
    // Where another process of this rank takes part, the start does not need this one.
    if (store_->check({concat("claim/", rendezvous_.rank)})) return;
    if (!store_->check({"refused"})) store_->set("refused", bytes_of(text));
    store_->add("joined", 1);
    if (!is_first() || rendezvous_.served) return;
    wait_until([&] { return store_->add("joined", 0) >= rendezvous_.world; });
    stay_for_others();
  }

 private:
  bool is_first() const { return rendezvous_.rank == 0; }

  void use_token(const std::string& token) {
    token_ = token;
    store_ = root_->within(token);
  }

  void begin_start() {
    const std::string token = concat(random_token(), ' ', rendezvous_.world);
    use_token(token);
    root_->set("token", bytes_of(token));
  }

  /// Waits for rank 0's token, and compares the world size that it says.
  bool find_start() {
    look_until([&] { return root_->check({"token"}); }, [] { return std::string("0"); });
    use_token(root_->get_to_str("token"));
    const std::string world = token_.substr(token_.find(' ') + 1);
    if (world == std::to_string(rendezvous_.world)) return true;
    const std::string text =
        concat("the world size is ", world, " on rank 0 and ", rendezvous_.world, " on rank ",
               rendezvous_.rank, " (start every rank with the same WORLD_SIZE)");
    store_->set("refused", bytes_of(text));
    if (another_start_begins()) return false;
    throw UserError(concat(kWhere, text));
  }

  /// A store that a launcher serves may hold the token of an earlier start, whose ranks have all ended: does
  /// rank 0 of a new one come within the patience? (The end of the store's own process is the caller's to
  /// see.)
  bool another_start_begins() {
    Wait wait({std::min(kPatience, rendezvous_.timeout), rendezvous_.stop}, nullptr);
    while (wait.goes_on()) {
      try {
        if (root_->get_to_str("token") != token_) return true;
      } catch (const std::exception&) {
        return false;
      }
      std::this_thread::sleep_for(Milliseconds(100));
    }
    return false;
  }

  /// One look after another until `look` is true, quickly at first. Errors: CommError that names `missing()`
  /// at the end of the time.
  template <typename Look, typename Missing>
  void look_until(const Look& look, const Missing& missing) {
    std::function<std::string()> whom;  // one rank speaks for all
    if (is_first()) whom = [&] { return concat("rank ", missing(), " of ", rendezvous_.world); };
    Wait wait({rendezvous_.timeout, rendezvous_.stop}, whom);
    // Thousands of ranks ask one process.
    const Milliseconds longest(100 + rendezvous_.world / 8);
    for (auto pause = Milliseconds(2); !look(); pause = std::min(pause * 2, longest)) {
      if (!wait.goes_on()) {
        const std::string text =
            concat("timed out after ", seconds_text(rendezvous_.timeout), " while waiting for rank ",
                   missing(), " of ", rendezvous_.world, " (was it started? run.timeout is the limit)");
        if (is_first()) {
          store_->set(kTimedOut, bytes_of(text));
          stay_for_others();
        }
        throw CommError(concat(kWhere, text));
      }
      std::this_thread::sleep_for(pause);
    }
  }

  /// Says that this rank is there and waits for the others.
  bool announce() {
    // Of an earlier start, in a store of a launcher, or of this one, for which this rank comes too late.
    if (!is_first() && store_->check({kTimedOut}) && another_start_begins()) return false;
    if (store_->add(concat("claim/", rendezvous_.rank), 1) > 1) {
      if (!is_first() && another_start_begins()) return false;
      throw RankIsTaken(concat(kWhere, "rank ", rendezvous_.rank,
                               " has joined this run already: two processes have the same rank ",
                               "(check RANK, or the launcher's settings, on each host)"));
    }
    return wait_for_all("joined", to_text(facts_));
  }

  /// Every rank leaves `value` under its own key, and goes on once all have. False: this start is over.
  bool wait_for_all(const std::string& name, const std::string& value) {
    const auto key = [&](int64_t rank) { return concat(name, "/", rank); };
    store_->set(key(rendezvous_.rank), bytes_of(value));
    if (store_->add(name, 1) == rendezvous_.world) store_->set("all " + name, bytes_of("1"));
    bool over = false;
    const auto look = [&] {
      refuse_if_told();
      over = root_->get_to_str("token") != token_;
      if (over && is_first()) {
        throw UserError(concat(
            kWhere, "another process with rank 0 has begun this run: two processes have the same rank ",
            "(check RANK, or the launcher's settings, on each host)"));
      }
      return over || store_->check({"all " + name});
    };
    const auto missing = [&] {
      std::vector<std::string> ranks;
      for (int64_t rank = 0; rank < rendezvous_.world; ++rank) {
        if (!store_->check({key(rank)})) ranks.push_back(std::to_string(rank));
      }
      return join(ranks, ", ");
    };
    look_until(look, missing);
    return !over;
  }

  void refuse_if_told() {
    if (!is_first() && store_->check({kTimedOut}))
      throw CommError(concat(kWhere, store_->get_to_str(kTimedOut)));
    const std::string text = refusal_in(*store_);
    if (text.empty()) return;
    if (is_first()) stay_for_others();
    throw UserError(text);
  }

  /// The store lives with rank 0, which has to be there until the others have read why the start fails.
  void stay_for_others() const { std::this_thread::sleep_for(Milliseconds(1000 + rendezvous_.world)); }

  /// Each rank compares its facts with rank 0's. Only where some differ does rank 0 read all of them, and say
  /// what it found.
  bool compare() {
    if (store_->get_to_str("joined/0") != to_text(facts_)) store_->set("different", bytes_of("1"));
    if (!wait_for_all("compared", "1")) return false;
    if (!store_->check({"different"})) return true;
    if (is_first()) {
      std::vector<Facts> of_ranks;
      for (int64_t rank = 0; rank < rendezvous_.world; ++rank) {
        of_ranks.push_back(facts_from_text(store_->get_to_str(concat("joined/", rank))));
      }
      store_->set("refused", bytes_of(difference_of(of_ranks)));
    }
    look_until(
        [&] {
          refuse_if_told();
          return false;
        },
        [] { return std::string("0"); });
    return false;  // not reached: either of the two throws
  }

  StorePointer root_, store_;  // of all starts; of this start
  const Rendezvous& rendezvous_;
  const Facts facts_;
  std::string token_;
};

}  // namespace

StorePointer join_ranks(const StorePointer& store, const Rendezvous& rendezvous, const Facts& facts) {
  return Joining(store, rendezvous, facts).run();
}

void refuse_start(const StorePointer& store, const Rendezvous& rendezvous, const std::string& text) {
  Joining(store, rendezvous, {}).refuse(text);
}

std::string refusal_in(TimedStore& store) {
  return store.check({"refused"}) ? concat(kWhere, store.get_to_str("refused")) : "";
}

std::string to_text(const Facts& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    for (const std::string* field : {&fact.name, &fact.value, &fact.hint}) text += *field + kEndOfField;
  }
  return text;
}

Facts facts_from_text(const std::string& text) {
  std::vector<std::string> fields;
  std::istringstream in(text);
  for (std::string field; std::getline(in, field, kEndOfField);) fields.push_back(field);
  if (fields.size() % 3 != 0)
    throw CommError(concat(kWhere, "a rank's facts cannot be read: ", fields.size(), " fields"));
  Facts facts;
  for (size_t i = 0; i < fields.size(); i += 3) facts.push_back({fields[i], fields[i + 1], fields[i + 2]});
  return facts;
}

std::string difference_of(const std::vector<Facts>& of_ranks) {
  const Facts& first = of_ranks.front();
  for (size_t i = 0; i < first.size(); ++i) {
    std::map<std::string, std::vector<int64_t>> others;  // by another value than rank 0's
    std::vector<int64_t> same;
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const Facts& facts = of_ranks[rank];
      const std::string value =
          i < facts.size() && facts[i].name == first[i].name ? facts[i].value : "unknown there";
      (value == first[i].value ? same : others[value]).push_back(static_cast<int64_t>(rank));
    }
    if (others.empty()) continue;
    const auto& [value, ranks] =
        *std::ranges::min_element(others, {}, [](const auto& other) { return other.second.front(); });
    const auto [theirs, its] = first_difference(first[i].value, value);
    return concat("ranks disagree on ", first[i].name, ": ", theirs, " on ", ranks_text(same), ", ", its,
                  " on ", ranks_text(ranks),
                  others.size() > 1 ? concat(", and ", others.size() - 1, " more values on other ranks") : "",
                  first[i].hint.empty() ? "" : concat(" (", first[i].hint, ")"));
  }
  return "ranks disagree on what they compare: do all run the same program?";
}

}  // namespace tessera::mesh
