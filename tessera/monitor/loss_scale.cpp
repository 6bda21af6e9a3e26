// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/loss_scale.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::monitor {

void LossScale::used() {
  if (!on_ || ++good_in_a_row_ < kSteps) return;
  value_ *= 2;
  good_in_a_row_ = 0;
}

void LossScale::overflowed() {
  value_ = std::max(value_ / 2, kLeast);
  good_in_a_row_ = 0;
  ++overflows_;
}

std::string LossScale::to_json() const {
  return nlohmann::json{
      {"on", on_}, {"value", value_}, {"good_in_a_row", good_in_a_row_}, {"overflows", overflows_}}
      .dump();
}

void LossScale::restore(const std::string& json) {
  if (!on_ || json.empty()) return;
  try {
    const auto saved = nlohmann::json::parse(json);
    if (!saved.at("on").get<bool>()) return;  // by a run whose dtype needs no scale
    value_ = saved.at("value").get<double>();
    good_in_a_row_ = saved.at("good_in_a_row").get<int64_t>();
    overflows_ = saved.at("overflows").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    user_error({.where = "monitor.loss_scale",
                .problem = concat("the saved state of the loss scale cannot be read: ", error.what())});
  }
}

}  // namespace tessera::monitor
