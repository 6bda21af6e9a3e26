// SPDX-License-Identifier: Apache-2.0
// The program that local_test and launchers_test start: a parent of local ranks, or one of them.
//   launch_child show                                  prints its place among the ranks
//   launch_child alone FOLDER ACT                      plays ACT without a parent
//   launch_child run PROCS LOGS GRACE FOLDER ACT...    run_local; rank N plays the Nth ACT (the last one
//   repeats)
// An act is a list of words joined by +; each rank says FOLDER/ready-N (its pid) at the word `ready`.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/launch/launch.h"

namespace {
using namespace tessera;
namespace fs = std::filesystem;

void nap(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

[[noreturn]] void hang() {
  while (true) nap(60'000);
}

/// Tells the test something: FOLDER/name-RANK appears whole.
void tell(const fs::path& folder, const std::string& name, int64_t rank, int64_t value) {
  const fs::path path = folder / concat(name, "-", rank);
  std::ofstream(path.string() + ".part") << value;
  fs::rename(path.string() + ".part", path);
}

/// Every rank gets a connection to rank 0, as in a rendezvous.
std::vector<int> connect(const launch::Ranks& ranks) {
  std::vector<int> sockets;
  if (ranks.rank == 0) {
    for (int64_t i = 1; i < ranks.world; ++i)
      sockets.push_back(::accept(ranks.master_listen_fd, nullptr, nullptr));
    ::close(ranks.master_listen_fd);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(ranks.master_port);
    ::inet_pton(AF_INET, ranks.master_host.c_str(), &address.sin_addr);
    sockets.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    if (::connect(sockets[0], reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::exit(5);
  }
  return sockets;
}

/// Until a peer has gone: the first to notice says so by exit code 3.
[[noreturn]] void lose_peer(const std::vector<int>& sockets) {
  std::vector<pollfd> waits;
  for (const int socket : sockets) waits.push_back({socket, POLLIN, 0});
  ::poll(waits.data(), waits.size(), -1);
  std::cerr << "error: lost a peer" << std::endl;
  ::_exit(kExitCommunication);
}

std::atomic<int> g_signals = 0;

/// How often SIGTERM arrives within half a second of the first.
void count_signals(const fs::path& folder, int64_t rank) {
  ::signal(SIGTERM, [](int) { ++g_signals; });
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  while (g_signals == 0) nap(2);
  for (int i = 0; i < 50; ++i) nap(10);
  tell(folder, "signals", rank, g_signals);
}

/// Exit code 4 if a file is open that a rank should not have, or there is something to read.
void check_files(const launch::Ranks& ranks) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own descriptor
    const auto target = fs::read_symlink(entry.path(), gone);
    const int fd = std::stoi(entry.path().filename());
    if (gone || fd <= 2 || fd == ranks.master_listen_fd || target.string().starts_with("/proc/")) continue;
    std::cerr << "open: " << fd << " " << target << std::endl;
    ::_exit(4);
  }
  char byte = 0;
  if (::read(0, &byte, 1) != 0) ::_exit(4);
}

void play(const std::string& act, const launch::Ranks& ranks, const fs::path& folder) {
  std::vector<int> sockets;
  std::istringstream words(act);
  for (std::string word; std::getline(words, word, '+');) {
    if (word == "ready") tell(folder, "ready", ranks.rank, ::getpid());
    if (word == "port") tell(folder, "port", ranks.rank, ranks.master_port);
    if (word == "say") std::cout << "rank " << ranks.rank << " says so" << std::endl;
    if (word == "connect") sockets = connect(ranks);
    if (word == "lose") lose_peer(sockets);
    if (word == "close")
      for (const int socket : sockets) ::close(socket);
    if (word == "nap") nap(300);
    if (word == "hang") hang();
    if (word == "handlers") launch::install_signal_handlers();
    if (word == "stop")
      while (!launch::stop_requested()) nap(2);
    if (word == "request") launch::request_stop();
    if (word == "count") count_signals(folder, ranks.rank);
    if (word == "files") check_files(ranks);
    if (word == "family" && ::fork() == 0) hang();
    if (word == "kill") ::raise(SIGKILL);
    if (word == "exit2" || word == "exit3" || word == "exit4" || word == "exit7") ::_exit(word[4] - '0');
    if (word == "abort") {
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_CORE, &none);
      std::cerr << "terminate called\n\n  what():\todd\n";
      ::abort();
    }
  }
}

int run(const std::vector<std::string>& words) {
  launch::LocalOptions options;
  options.procs = std::stoll(words[1]);
  options.log_dir = words[2] == "-" ? "" : words[2];
  options.grace_seconds = std::stoll(words[3]);
  return launch::run_local(options, words);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const launch::Ranks ranks = launch::ranks_from_environment();
    if (words.at(0) == "show") {
      std::cout << concat(ranks.launcher, " ", ranks.rank, "/", ranks.world, " local ", ranks.local_rank, "/",
                          ranks.local_world, " ", ranks.master_host, ":", ranks.master_port, "\n")
                << std::flush;
    } else if (words[0] == "alone") {
      play(words.at(2), ranks, words.at(1));
    } else if (ranks.launcher == "local" && words.back() != "again") {
      const size_t act = std::min(words.size() - 1, 5 + static_cast<size_t>(ranks.rank));
      play(words.at(act), ranks, words.at(4));
    } else {
      return run(words);
    }
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  }
}
