// SPDX-License-Identifier: Apache-2.0
// Tessera's epoll_wait(), which replaces the C library's. Any thread.
#pragma once

#include <cstdint>

namespace tessera {

/// How often threads of this process have left their core in epoll_wait() because they polled without
/// progress: Note [Event loops] in epoll_wait.cpp. 0 where another epoll_wait() is used, such as the thread
/// sanitizer's.
int64_t interrupted_polls();

}  // namespace tessera
