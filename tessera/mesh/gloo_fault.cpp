// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/gloo_fault.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"

namespace tessera::mesh {
namespace {

std::terminate_handler terminate_before = nullptr;

[[noreturn]] void end_with_a_line() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      const std::string text = gloo_fault_text(error.what());
      if (!text.empty()) {
        std::fprintf(stderr, "error: %s\n", text.c_str());
        std::_Exit(kExitCommunication);
      }
    } catch (...) {
    }
  }
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

}  // namespace

void explain_faults_of_gloo() {
  static std::once_flag once;
  std::call_once(once, [] { terminate_before = std::set_terminate(end_with_a_line); });
}

std::string gloo_fault_text(const std::string& what) {
  if (what.find("gloo/transport") == std::string::npos) return "";
  static const std::regex kLengths("op\\.preamble\\.length <= op\\.nbytes\\. (\\d+) vs (\\d+)");
  std::smatch found;
  if (!std::regex_search(what, found, kLengths)) return one_line(concat("[mesh.gloo] ", what));
  return concat("[mesh.gloo] ranks are in different collectives: a message of ", found[1].str(),
                " bytes came where this rank expected ", found[2].str(),
                ": expected the same calls on every rank, and the same ZeRO-3 units in the same order; ",
                kOwnDataRemedy);
}

}  // namespace tessera::mesh
