// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/find_torch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

bool holds_torch(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "lib" / "libtorch_cpu.so", ignored);
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

/// Where a Python that is a script says that its torch is. It does not import torch, which would take
/// seconds.
fs::path ask_python(const fs::path& python) {
  std::string quoted = "'";
  for (const char letter : python.string()) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  const std::string command = quoted +
                              "' -I -c \"import importlib.util, os; s = importlib.util.find_spec('torch'); "
                              "print(os.path.dirname(s.origin) if s else '')\" 2>/dev/null </dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> answer(::popen(command.c_str(), "r"), ::pclose);
  std::string line(4096, '\0');
  if (!answer || std::fgets(line.data(), static_cast<int>(line.size()), answer.get()) == nullptr) return {};
  line.resize(line.find_first_of(std::string("\n\0", 2)));
  return line;
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
  std::ifstream python(folder / "version.py");
  const std::regex line_of_version(R"(^__version__\s*=\s*['"]([0-9.]+).*)");
  std::smatch match;
  for (std::string line; std::getline(python, line);) {
    if (std::regex_match(line, match, line_of_version)) return match[1];
  }
  const std::string line = first_line(folder / "build-version");
  return line.substr(0, line.find_first_not_of("0123456789."));
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
      user_error("cli.torch", "TESSERA_TORCH_DIR is '", given,
                 "', which has no lib/libtorch_cpu.so: expected the folder of ", "the torch package ",
                 search.version);
    }
    if (const std::string version = torch_version(given); version != search.version) {
      user_error("cli.torch", "TESSERA_TORCH_DIR is '", given, "', which holds torch ",
                 version.empty() ? "of an unknown version" : version, ": this program needs ", search.version,
                 " (", hint, ")");
    }
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
      if (found == search.version) return fs::weakly_canonical(folder);
    }
    seen.push_back(concat(place, ": ", found.empty() ? "unknown version" : found));
  }
  std::string list;
  for (const std::string& line : seen) list += (list.empty() ? "" : "; ") + line;
  user_error("cli.torch", "torch ", search.version, " was not found (", list, "): ", hint);
}

}  // namespace tessera::launch
