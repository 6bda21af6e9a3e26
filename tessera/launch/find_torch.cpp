// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/find_torch.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostRead = 64 << 10;                        // of a file that should be a few lines
constexpr auto kPatience = std::chrono::milliseconds(10000);  // with a python3 that is a script

/// Its beginning; nothing of what is no file, such as a pipe, which might never end.
std::string beginning_of(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return "";
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostRead, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::string first_line(const fs::path& file) {
  const std::string text = beginning_of(file);
  return text.substr(0, text.find('\n'));
}

/// "2.11.0" of "2.11.0+cu130", whose end says how it was built; "2.11.0a0" stays what it is.
std::string without_build(const std::string& version) {
  return version.substr(0, version.find_first_of("+ \r\n"));
}

bool holds_torch(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "lib" / "libtorch_cpu.so", ignored);
}

/// The number of bytes that an ELF library has by its header, whose section table stands at the end; 0 where
/// the header is not one of a 64-bit ELF file. Source: elf(5).
uint64_t length_by_header(const fs::path& library) {
  std::ifstream in(library, std::ios::binary);
  Elf64_Ehdr header{};
  if (!in.read(reinterpret_cast<char*>(&header), sizeof header)) return 0;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  const uint64_t table = uint64_t{header.e_shnum} * header.e_shentsize;
  return header.e_shoff > UINT64_MAX - table ? UINT64_MAX : header.e_shoff + table;
}

/// Refuses a package with a library that is shorter than its header says, as a full disk leaves it: mapping
/// such a library would end the process by SIGBUS.
void check_whole(const fs::path& package) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(package / "lib", ignored)) {
    if (entry.path().filename().string().find(".so") == std::string::npos) continue;
    if (!entry.is_regular_file(ignored)) continue;
    const uint64_t size = entry.file_size(ignored), expected = length_by_header(entry.path());
    if (size == 0 || size < expected) {
      user_error({.where = "cli.torch",
                  .problem = concat(entry.path().string(), " is incomplete: it has ", size, " bytes"),
                  .expected = size == 0 ? "" : concat(expected, " bytes"),
                  .hint = "install torch again (pip install --force-reinstall)"});
    }
  }
}

/// PREFIX/lib*/python3*/{site,dist}-packages/torch of a Python installed in `prefix`, sorted.
std::vector<fs::path> torch_packages_under(const fs::path& prefix) {
  std::vector<fs::path> found;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(prefix / lib, ignored)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        const fs::path folder = entry.path() / packages / "torch";
        if (holds_torch(folder)) found.push_back(folder);
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

fs::path first_python3(const char* search_path) {
  std::stringstream folders(search_path != nullptr ? search_path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path python = fs::path(folder.empty() ? "." : folder) / "python3";
    if (::access(python.c_str(), X_OK) == 0 && !fs::is_directory(python)) return python;
  }
  return {};
}

/// The first line that a command says within kPatience; empty where it says none. It reads /dev/null, what
/// it says on stderr is lost, and whatever it started is killed with it.
std::string first_line_said(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // to kill it with all that it starts
  pid_t child = -1;
  const bool started = ::posix_spawn(&child, argv[0], &files, &attributes, argv.data(), environ) == 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  std::string said;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (started && said.find('\n') == std::string::npos && said.size() < kMostRead) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd waiting{ends[0], POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) break;
    char piece[4096];
    const ssize_t count = ::read(ends[0], piece, sizeof piece);
    if (count <= 0) break;
    said.append(piece, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  if (started) {
    ::kill(-child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return said.substr(0, said.find('\n'));
}

/// Where a Python that is a script says that its torch is. It does not import torch, which would take
/// seconds.
fs::path ask_python(const fs::path& python) {
  return first_line_said({python.string(), "-I", "-c",
                          "import importlib.util, os; s = importlib.util.find_spec('torch'); "
                          "print(os.path.dirname(s.origin) if s else '')"});
}

/// The packages of a python3: of each folder that a chain of links leads through, since the first may be a
/// link into a virtual environment, and that one's a link to the system's.
std::vector<fs::path> torch_packages_of(const fs::path& python) {
  std::vector<fs::path> found;
  fs::path at = fs::absolute(python);
  for (int links = 0; links < 40; ++links) {
    for (const fs::path& folder : torch_packages_under(at.parent_path().parent_path()))
      found.push_back(folder);
    std::error_code ignored;
    if (!fs::is_symlink(at, ignored)) break;
    at = (at.parent_path() / fs::read_symlink(at)).lexically_normal();
  }
  if (!found.empty()) return found;
  if (first_line(at).starts_with("#!")) {
    if (const fs::path folder = ask_python(python); holds_torch(folder)) return {folder};
  }
  return {};
}

}  // namespace

std::string torch_version(const fs::path& folder) {
  std::istringstream python(beginning_of(folder / "version.py"));
  for (std::string line; std::getline(python, line);) {
    const size_t equals = line.find_first_not_of(' ', std::string("__version__").size());
    if (!line.starts_with("__version__") || equals == std::string::npos || line[equals] != '=') continue;
    const size_t quote = line.find_first_of("'\"", equals);
    if (quote == std::string::npos) continue;
    return without_build(line.substr(quote + 1, line.find(line[quote], quote + 1) - quote - 1));
  }
  return without_build(first_line(folder / "build-version"));
}

fs::path find_torch(const TorchSearch& search) {
  const auto set = [&](const char* name) -> std::string {
    const char* value = search.variable(name);
    return value != nullptr ? value : "";
  };
  const std::string hint =
      concat("pip install torch==", search.version,
             ", or set TESSERA_TORCH_DIR to the folder of a torch package ", search.version);
  if (const std::string given = set("TESSERA_TORCH_DIR"); !given.empty()) {
    if (!holds_torch(given)) {
      user_error({.where = "cli.torch",
                  .problem = concat("TESSERA_TORCH_DIR is '", given, "', which has no lib/libtorch_cpu.so"),
                  .expected = concat("the folder of the torch package ", search.version)});
    }
    if (const std::string version = torch_version(given); version != search.version) {
      user_error({.where = "cli.torch",
                  .problem = concat("TESSERA_TORCH_DIR is '", given, "', which holds torch ",
                                    version.empty() ? "of an unknown version" : version),
                  .expected = concat("torch ", search.version),
                  .hint = hint});
    }
    check_whole(given);
    return fs::weakly_canonical(given);
  }

  std::vector<std::string> seen;  // for the error
  std::vector<std::pair<std::string, std::vector<fs::path>>> places;
  const auto one = [](const fs::path& folder) {
    return holds_torch(folder) ? std::vector<fs::path>{folder} : std::vector<fs::path>();
  };
  const fs::path beside = search.prefix / "lib" / "torch", record = search.prefix / "lib" / "torch.path";
  const fs::path python = first_python3(search.variable("PATH"));
  const std::string environment = set("VIRTUAL_ENV");
  // In order; what comes later is looked at only where nothing before was right.
  const std::vector<std::pair<std::string, std::function<std::vector<fs::path>()>>> steps = {
      {beside.string(), [&] { return one(beside); }},
      {concat(record.string(), " ('", first_line(record), "')"), [&] { return one(first_line(record)); }},
      {environment.empty() ? "VIRTUAL_ENV (not set)" : environment,
       [&] { return environment.empty() ? std::vector<fs::path>() : torch_packages_under(environment); }},
      {python.empty() ? "python3 (not on PATH)" : python.string(),
       [&] { return python.empty() ? std::vector<fs::path>() : torch_packages_of(python); }}};
  for (const auto& [place, packages] : steps) {
    std::string found = "none";
    for (const fs::path& folder : packages()) {
      found = torch_version(folder);
      if (found != search.version) continue;
      check_whole(folder);
      return fs::weakly_canonical(folder);
    }
    seen.push_back(concat(place, ": ", found.empty() ? "unknown version" : found));
  }
  std::string list;
  for (const std::string& line : seen) list += (list.empty() ? "" : "; ") + line;
  user_error({.where = "cli.torch",
              .problem = concat("torch ", search.version, " was not found (", list, ")"),
              .hint = hint});
}

}  // namespace tessera::launch
