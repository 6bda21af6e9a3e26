// SPDX-License-Identifier: Apache-2.0
#include "tests/launch/started.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace tessera::launch {
namespace fs = std::filesystem;
namespace {

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool is_launchers(std::string_view setting) {
  for (const auto* prefix : {"TESSERA_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "SLURM_", "OMPI_",
                             "PMIX_", "ENVIRONMENT=", "TORCHELASTIC_"}) {
    if (setting.starts_with(prefix) && !setting.starts_with("SLURM_CONF=")) return true;
  }
  return false;
}

}  // namespace

void nap(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

Started::Started(std::vector<std::string> command) : start_(std::chrono::steady_clock::now()) {
  std::vector<char*> argv, envp;
  for (auto& word : command) {
    for (size_t at = 0; (at = word.find('@', at)) != std::string::npos;)
      word.replace(at, 1, folder().string());
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_launchers(*entry)) envp.push_back(*entry);
  }
  envp.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ != 0) return;
  for (const auto& [name, fd] : {std::pair("out", 1), std::pair("err", 2)}) {
    ::dup2(::open((folder() / name).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), fd);
  }
  ::dup2(1, 77);  // a stray file that no rank should inherit
  ::execvpe(argv[0], argv.data(), envp.data());
  ::_exit(126);
}

Started::~Started() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const pid_t pid : alive()) ::kill(pid, SIGKILL);
}

void Started::signal(int number) const { ::kill(pid_, number); }

int Started::wait(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!ended_ && std::chrono::steady_clock::now() < until) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = true;
      seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
      code_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    } else {
      nap(2);
    }
  }
  return code_;
}

std::string Started::out() const { return content(folder() / "out"); }
std::string Started::err() const { return content(folder() / "err"); }

int64_t Started::told(const std::string& name) const {
  for (int i = 0; i < 30000; ++i) {
    if (fs::exists(folder() / name)) return std::stoll(content(folder() / name));
    nap(2);
  }
  return -1;
}

std::vector<pid_t> Started::alive() const {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // A zombie's command line is empty: it is gone but for its parent's interest.
    if (content(entry.path() / "cmdline").find(folder().string()) != std::string::npos) {
      pids.push_back(std::stoi(name));
    }
  }
  return pids;
}

bool Started::all_gone(double seconds) const {
  for (int i = 0; i < seconds * 200; ++i) {
    if (alive().empty()) return true;
    nap(5);
  }
  return false;
}

}  // namespace tessera::launch
