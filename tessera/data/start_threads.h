// SPDX-License-Identifier: Apache-2.0
// Threads whose number somebody chose, on a machine that may not have as many.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace tessera::data {

/// Starts `count` threads that call `work` and appends them to `threads`. Where the system refuses one,
/// `stop`, after which `work` has to return, is called once, those that run are joined and `threads` is
/// empty. Errors: then UserError that says how many were wanted and how many started.
void start_threads(size_t count, const std::function<void()>& work, const std::function<void()>& stop,
                   std::vector<std::thread>& threads);

}  // namespace tessera::data
