// SPDX-License-Identifier: Apache-2.0
// Finds the LibTorch that a process loads. The program is linked without LibTorch, so that one build serves
// every place where the `torch` package of the right version is installed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace tessera::launch {

struct TorchSearch {
  std::filesystem::path prefix;  // the folder that holds the program's bin/ and lib/
  std::string version;           // "2.11.0": the version that this build was compiled against
  /// Reads an environment variable; null where it is not set. For tests.
  std::function<const char*(const char*)> variable;
};

/// The folder of the torch package, with lib/libtorch_cpu.so in it: the first of
///   1. $TESSERA_TORCH_DIR, which must be right,
///   2. PREFIX/lib/torch, then the folder that the file PREFIX/lib/torch.path names (`./dev` writes that
///   file),
///   3. the torch package of $VIRTUAL_ENV,
///   4. the torch package of the first `python3` on $PATH. A `python3` that is a script (pyenv) is asked; no
///   other
///      Python process is started.
/// A package of a different version is passed over; "2.11.0+cu130" is version 2.11.0. Errors: UserError that
/// lists the places and what was found there, or names a library of the package that is incomplete. Safe from
/// any thread.
std::filesystem::path find_torch(const TorchSearch& search);

/// The version of the torch package in `folder` without its suffix, as its version.py (wheel) or
/// build-version (archive of LibTorch) gives it; empty where there is none.
std::string torch_version(const std::filesystem::path& folder);

}  // namespace tessera::launch
