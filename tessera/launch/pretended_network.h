// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::launch {

/// How long the messages of a pretended rank take: each has come `latency` seconds after the link of its
/// group has carried its bytes, one message after another.
struct PretendedNetwork {
  double latency = 0;
  double bytes_per_second = 0;  // 0: messages take no time
};

}  // namespace tessera::launch
