// SPDX-License-Identifier: Apache-2.0
// Names of augmentation policies: what is accepted draws operations with numbers, the same ones again.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/data/augment/policy.h"

namespace {

using namespace tessera;

void expect(bool good) {
  if (!good) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  try {
    const auto policy = data::parse_policy(text, {}), again = data::parse_policy(text, {});
    data::Draws draws(1), draws_again(1);
    for (int image = 0; image < 3; ++image) {
      const auto drawn = policy->draw(draws, 224, 160), drawn_again = again->draw(draws_again, 224, 160);
      expect(drawn.size() == drawn_again.size());
      for (size_t i = 0; i < drawn.size(); ++i) {
        expect(std::isfinite(drawn[i].amount));
        expect(drawn[i].op == drawn_again[i].op && drawn[i].amount == drawn_again[i].amount);
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
