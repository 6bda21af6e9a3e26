// SPDX-License-Identifier: Apache-2.0
// Errors and checks. Safe from any thread.
//
// Three kinds, told apart by who can mend them. The program turns each into one line and an exit code
// (cli/main.cpp): user error 2, communication 3, our own fault 4. 5 is no error of the program: it has done
// its work for some inputs and named those for which it could not.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

enum ExitCode { kExitDone = 0, kExitUser = 2, kExitCommunication = 3, kExitInternal = 4, kExitPartial = 5 };

/// Base of all errors thrown on purpose. `what()` is one line:
/// `[room.function] problem: expected EXPECTED; hint`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

/// The user can mend it: a recipe, a flag, a file, a machine that is too small.
class UserError : public Error {
 public:
  explicit UserError(const std::string& message) : Error(kExitUser, message) {}
};

/// Another rank or the network failed.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(kExitCommunication, message) {}
};

/// A promise inside Tessera does not hold. Input must never reach this.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(kExitInternal, message) {}
};

/// Joins anything that `<<` prints into one string.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

/// What an error tells the user, each part in the user's own spelling of settings and files:
///   `[where] problem: expected EXPECTED; hint`.
struct ErrorParts {
  std::string_view where;  // room.function, for readers of the sources
  std::string problem;     // names the setting or file first, then says what is wrong, with the value
  std::string expected{};  // what is allowed; empty where `problem` says it
  std::string hint{};      // what to do; empty where `expected` says it
};

/// Throws a UserError of these parts.
[[noreturn]] void user_error(const ErrorParts& parts);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& values);
}

}  // namespace tessera

/// Our own faults: prints the expression, the given values, file and line.
#define TESSERA_CHECK(condition, ...)                                                                  \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]] {                                                                   \
      ::tessera::detail::check_failed(__FILE__, __LINE__, #condition, ::tessera::concat(__VA_ARGS__)); \
    }                                                                                                  \
  } while (false)

#define TESSERA_CHECK_EQ(a, b)                                                               \
  do {                                                                                       \
    const auto& tessera_a = (a);                                                             \
    const auto& tessera_b = (b);                                                             \
    if (!(tessera_a == tessera_b)) [[unlikely]] {                                            \
      ::tessera::detail::check_failed(__FILE__, __LINE__, #a " == " #b,                      \
                                      ::tessera::concat(tessera_a, " against ", tessera_b)); \
    }                                                                                        \
  } while (false)
