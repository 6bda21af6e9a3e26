// SPDX-License-Identifier: Apache-2.0
// What the tests of trainings are about lies in five rooms: their names in one namespace.
#pragma once

namespace tessera::eager {}
namespace tessera::loop {}
namespace tessera::optim {}
namespace tessera::profile {}

namespace tessera::train {
using namespace loop;     // NOLINT(google-build-using-namespace)
using namespace eager;    // NOLINT(google-build-using-namespace)
using namespace optim;    // NOLINT(google-build-using-namespace)
using namespace profile;  // NOLINT(google-build-using-namespace)
}  // namespace tessera::train
