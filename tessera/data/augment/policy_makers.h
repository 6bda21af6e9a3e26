// SPDX-License-Identifier: Apache-2.0
// The families of policies, as parse_policy meets them. Private to this folder.
#pragma once

#include <memory>
#include <string>

#include "tessera/data/augment/policy.h"

namespace tessera::data {

inline constexpr const char* kPolicyWhere = "data.auto_augment";

using PolicyPointer = std::unique_ptr<const Policy>;

/// `text` starts with "rand".
PolicyPointer timm_rand_augment(const std::string& text, const PolicyOptions& options);
/// Null where timm has no AutoAugment policy of the name before the first '-'.
PolicyPointer timm_auto_augment(const std::string& text, const PolicyOptions& options);

/// `layers` operations of magnitude `magnitude`.
PolicyPointer big_vision_rand_augment(int64_t layers, double magnitude);
PolicyPointer torchvision_rand_augment(int64_t layers, int64_t magnitude, const PolicyOptions& options);
PolicyPointer trivial_augment_wide(const PolicyOptions& options);

/// The whole of `text` as a number from `low` to `high`. Errors: UserError that names `piece` of `policy`.
double policy_number(const std::string& text, double low, double high, const std::string& piece,
                     const std::string& policy);
/// The same without a fraction.
int64_t policy_integer(const std::string& text, int64_t low, int64_t high, const std::string& piece,
                       const std::string& policy);

}  // namespace tessera::data
