// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/unit_passes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/trace.h"

namespace tessera::profile {
namespace {

/// Part of a trace; microseconds.
struct Stretch {
  std::string name;
  double begin = 0, end = 0;
};

struct Stretches {
  std::vector<Stretch> forward, backward, messages;  // in the order in which they ended
};

Stretches stretches_of(const std::string& events) {
  const auto list = nlohmann::json::parse(concat('[', events, ']'), nullptr, /*allow_exceptions=*/false);
  TESSERA_CHECK(list.is_array(), "the events of a trace are no JSON");
  Stretches found;
  for (const auto& event : list) {
    if (event.at("ph") != "X") continue;
    const std::string kind = event.at("cat");
    const double begin = event.at("ts");
    const Stretch stretch{event.at("name"), begin, begin + event.at("dur").get<double>()};
    if (kind == "forward") found.forward.push_back(stretch);
    if (kind == "backward") found.backward.push_back(stretch);
    if (kind == kMessageSpan || kind == "wait") found.messages.push_back(stretch);
  }
  return found;
}

/// Seconds between two moments in which no message kept the thread.
double computing(double begin, double end, const std::vector<Stretch>& messages) {
  double microseconds = end - begin;
  for (const Stretch& message : messages)
    microseconds -= std::max(0.0, std::min(end, message.end) - std::max(begin, message.begin));
  return std::max(0.0, microseconds) * 1e-6;
}

}  // namespace

std::vector<UnitPass> unit_passes(const std::string& events) {
  const Stretches found = stretches_of(events);
  std::vector<UnitPass> passes;
  for (const Stretch& pass : found.forward)
    passes.push_back({pass.name, computing(pass.begin, pass.end, found.messages), 0});
  for (const Stretch& pass : found.backward) {
    const auto unit = std::ranges::find(passes, pass.name, &UnitPass::unit);
    TESSERA_CHECK(unit != passes.end(), pass.name, " has a backward pass and no forward pass");
    unit->backward += computing(pass.begin, pass.end, found.messages);
  }
  if (!passes.empty() && !found.backward.empty()) {
    const double loss_begins = found.forward.back().end, loss_ends = found.backward.front().begin;
    passes.back().forward += computing(loss_begins, std::max(loss_begins, loss_ends), found.messages);
  }
  return passes;
}

std::vector<UnitPass> traced_units(const std::function<void()>& micro_batch) {
  Trace trace(0);
  {
    const TraceScope scope(&trace);
    micro_batch();
  }
  return unit_passes(trace.events());
}

}  // namespace tessera::profile
