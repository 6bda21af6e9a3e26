// SPDX-License-Identifier: Apache-2.0
// Event loops that ask in vain give their core to another thread. Any thread.
#pragma once

#include <cstdint>

namespace tessera {

/// How often threads of this process have given way in epoll_wait() (Note [Event loops that ask in vain] in
/// epoll_wait.cpp). 0 where another library's epoll_wait() comes first, as that of the thread sanitizer.
int64_t epoll_waits_that_gave_way();

}  // namespace tessera
