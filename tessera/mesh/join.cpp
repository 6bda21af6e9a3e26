// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/join.h"

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/mesh/wait.h"

namespace tessera::mesh {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr char kEndOfField = '\x1f';
constexpr Milliseconds kLooksOfOthers{1000};
constexpr size_t kRanksListed = 8;  // of those that have one value
constexpr size_t kMostShown = 120;  // characters of a value
constexpr const char* kWhere = "[mesh.connect] ";

std::vector<uint8_t> bytes_of_text(const std::string& text) { return {text.begin(), text.end()}; }

/// One look after another until `look` is true; `late` throws at the end of the time. Looks come quickly at
/// first.
template <typename Look, typename Late>
void look_until(Wait& wait, const Look& look, const Late& late) {
  for (auto pause = Milliseconds(2); !look(); pause = std::min(pause * 2, Milliseconds(100))) {
    if (!wait.goes_on()) late();
    std::this_thread::sleep_for(pause);
  }
}

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
      : root_(store->within(concat("start ", rendezvous.attempt))), rendezvous_(rendezvous), facts_(facts) {}

  StorePointer run() {
    if (rendezvous_.rank == 0) begin_start();
    while (true) {
      if (rendezvous_.rank != 0) find_start();
      // False: rank 0 has begun another start meanwhile, so that this one is over.
      if (come() && compare()) return store_;
    }
  }

 private:
  Wait wait_for(std::function<std::string()> whom) const {
    return Wait({rendezvous_.timeout, rendezvous_.stop}, rendezvous_.rank == 0 ? std::move(whom) : nullptr);
  }

  void use_token(const std::string& token) {
    token_ = token;
    store_ = root_->within(token);
  }

  void begin_start() {
    std::random_device random;
    std::ostringstream token;
    token << std::hex << random() << random() << ' ' << rendezvous_.world;
    use_token(token.str());
    root_->set("token", bytes_of_text(token.str()));
  }

  /// Waits for rank 0's token, and compares the world size that it says.
  void find_start() {
    Wait wait = wait_for(nullptr);
    look_until(
        wait, [&] { return root_->check({"token"}); }, [&] { not_there("0"); });
    use_token(root_->get_to_str("token"));
    const std::string world = token_.substr(token_.find(' ') + 1);
    if (world == std::to_string(rendezvous_.world)) return;
    const std::string text =
        concat("the world size is ", world, " on rank 0 and ", rendezvous_.world, " on rank ",
               rendezvous_.rank, " (start every rank with the same WORLD_SIZE)");
    store_->set("refused", bytes_of_text(text));
    throw UserError(concat(kWhere, text));
  }

  [[noreturn]] void not_there(const std::string& ranks) const {
    throw CommError(concat(kWhere, rendezvous_.world, " ranks within ", seconds_text(rendezvous_.timeout),
                           ": no word from rank ", ranks));
  }

  std::vector<std::string> keys(const char* name) const {
    std::vector<std::string> all;
    for (int64_t rank = 0; rank < rendezvous_.world; ++rank) all.push_back(concat(name, "/", rank));
    return all;
  }

  /// Says that this rank is there and waits for the others.
  bool come() {
    const std::string mine = concat("claim/", rendezvous_.rank);
    if (store_->add(mine, 1) > 1) {
      throw RankIsTaken(concat(kWhere, "rank ", rendezvous_.rank,
                               " has joined this run already: two processes have the same rank ",
                               "(check RANK, or the launcher's settings, on each host)"));
    }
    store_->set(concat("joined/", rendezvous_.rank), bytes_of_text(to_text(facts_)));
    return wait_for_all("joined");
  }

  /// Rank 0 holds the store: it stays until the others have looked, too.
  void refuse_if_told() {
    const std::string text = refusal_in(*store_);
    if (text.empty()) return;
    if (rendezvous_.rank == 0) std::this_thread::sleep_for(kLooksOfOthers);
    throw UserError(text);
  }

  bool wait_for_all(const char* name) {
    const std::vector<std::string> wanted = keys(name);
    const auto missing = [&] {
      std::vector<std::string> ranks;
      for (int64_t rank = 0; rank < rendezvous_.world; ++rank) {
        if (!store_->check({wanted[static_cast<size_t>(rank)]})) ranks.push_back(std::to_string(rank));
      }
      return join(ranks, ", ");
    };
    Wait wait = wait_for([&] { return concat("rank ", missing(), " of ", rendezvous_.world); });
    bool over = false;
    look_until(
        wait,
        [&] {
          refuse_if_told();
          over = rendezvous_.rank != 0 && root_->get_to_str("token") != token_;
          return over || store_->check(wanted);
        },
        [&] { not_there(missing()); });
    return !over;
  }

  /// Each rank compares its facts with rank 0's. Only where some differ are all of them read.
  bool compare() {
    const std::string of_first = store_->get_to_str("joined/0");
    if (of_first != to_text(facts_)) store_->add("different", 1);
    store_->set(concat("compared/", rendezvous_.rank), bytes_of_text("1"));
    if (!wait_for_all("compared")) return false;
    if (store_->add("different", 0) == 0) return true;
    std::vector<Facts> of_ranks;
    for (const std::string& key : keys("joined"))
      of_ranks.push_back(facts_from_text(store_->get_to_str(key)));
    try {  // the store lives with rank 0: all read what they need before it leaves
      store_->set(concat("read/", rendezvous_.rank), bytes_of_text("1"));
      wait_for_all("read");
    } catch (const std::exception&) {
      // Rank 0 has seen all and left.
    }
    throw UserError(concat(kWhere, difference_of(of_ranks)));
  }

  StorePointer root_, store_;  // of this attempt; of this start
  const Rendezvous& rendezvous_;
  const Facts& facts_;
  std::string token_;
};

}  // namespace

StorePointer join_ranks(const StorePointer& store, const Rendezvous& rendezvous, const Facts& facts) {
  return Joining(store, rendezvous, facts).run();
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
