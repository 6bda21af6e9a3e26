// SPDX-License-Identifier: Apache-2.0
// Values of a plan that contradict each other.
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/names.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

class Checker {
 public:
  Checker(const Plan& plan, const std::string& where) : plan_(plan), where_(where) {}

  void run() const {
    check_stages();
    check_first_units();
    std::set<std::string> names;
    for (const UnitPlan& unit : plan_.units) {
      if (!names.insert(unit.name).second)
        fail(concat("\"units\" has \"", escape(unit.name), "\" twice"), "");
      check_unit(unit);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& expected) const {
    user_error({.where = "plan.check", .problem = concat(problem, " (", where_, ")"), .expected = expected});
  }

  static std::string ranks(int64_t count) { return concat(count, count == 1 ? " rank" : " ranks"); }

  void check_stages() const {
    const Plan& p = plan_;
    if (p.world % p.stages != 0) {
      fail(concat("\"stages\" is ", p.stages), concat("a divisor of \"world\" (", p.world, ")"));
    }
    const bool interleaved = p.schedule == Schedule::kInterleaved;
    if (interleaved != (p.virtual_stages > 1)) {
      fail(concat("\"virtual_stages\" is ", p.virtual_stages, " with \"schedule\" \"", to_string(p.schedule),
                  "\""),
           interleaved ? "2 or more" : "1");
    }
    if (p.stages == 1 && interleaved)
      fail("\"schedule\" is \"interleaved\" with 1 stage", "2 or more stages");
    if (p.ahead > 0 && (p.schedule != Schedule::k1F1B || p.stages == 1)) {
      fail(concat("\"ahead\" is ", p.ahead, " with ",
                  p.stages == 1 ? "1 stage" : concat("\"schedule\" \"", to_string(p.schedule), "\"")),
           "0, or \"1f1b\" with 2 or more stages");
    }
    if (p.stages > 1 && p.micro_batches == 0) {
      fail(concat("\"micro_batches\" is 0 with ", p.stages, " stages"), "1 or more");
    }
    if (interleaved && p.micro_batches % p.stages != 0) {
      fail(concat("\"micro_batches\" is ", p.micro_batches, " with \"schedule\" \"interleaved\""),
           concat("a multiple of \"stages\" (", p.stages, ")"));
    }
  }

  void check_first_units() const {
    const int64_t parts = plan_.stages * plan_.virtual_stages;
    const auto units = static_cast<int64_t>(plan_.units.size());
    const std::vector<int64_t>& first = plan_.first_unit;
    if (parts > units) {
      fail(concat("\"stages\" times \"virtual_stages\" is ", parts), concat("at most the ", units, " units"));
    }
    if (static_cast<int64_t>(first.size()) != parts) {
      fail(concat("\"first_unit\" has ", first.size(), first.size() == 1 ? " entry" : " entries"),
           concat(parts, ", one for each virtual stage"));
    }
    for (size_t i = 0; i < first.size(); ++i) {
      const int64_t low = i == 0 ? 0 : first[i - 1] + 1, high = i == 0 ? 0 : units - 1;
      if (first[i] >= low && first[i] <= high) continue;
      fail(concat("entry ", i, " of \"first_unit\" is ", first[i]),
           high == 0    ? "0"
           : low > high ? concat("rising entries of at most ", high)
                        : concat(low, " to ", high));
    }
  }

  void check_unit(const UnitPlan& unit) const {
    const std::string name = concat(" of \"", escape(unit.name), "\" is ");
    if (plan_.stage_ranks() % unit.layout.tensor != 0) {
      fail(concat("\"tensor\"", name, unit.layout.tensor),
           concat("a divisor of the ", ranks(plan_.stage_ranks()), " of a stage"));
    }
    if (unit.shard != 0 && unit.level == Level::kReplicate) {
      fail(concat("\"shard\"", name, unit.shard), "0 with \"level\" \"replicate\"");
    }
    const int64_t all = data_parallel_span(plan_, unit).size;
    if (unit.shard != 0 && all % unit.shard != 0) {
      fail(concat("\"shard\"", name, unit.shard),
           concat("0 or a divisor of its ", all, " data-parallel ranks"));
    }
  }

  const Plan& plan_;
  const std::string& where_;
};

}  // namespace

void check(const Plan& plan, const std::string& where) { Checker(plan, where).run(); }

}  // namespace tessera::plan
