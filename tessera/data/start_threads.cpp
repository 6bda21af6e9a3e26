// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/start_threads.h"

#include <exception>
#include <string>

#include "tessera/base/error.h"

namespace tessera::data {

void start_threads(size_t count, const std::function<void()>& work, const std::function<void()>& stop,
                   std::vector<std::thread>& threads) {
  std::string reason;
  try {
    for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
    return;
  } catch (const std::exception& error) {  // a limit on threads or on memory, for their stacks
    reason = error.what();
  }
  const size_t started = threads.size();
  stop();
  for (auto& thread : threads) thread.join();
  threads.clear();
  user_error(
      {.where = "data.threads",
       .problem = concat("the system started only ", started, " of ", count, " threads (", reason, ")"),
       .hint = "ask for fewer, or raise its limits"});
}

}  // namespace tessera::data
