// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/thread_cores.h"
#include "tessera/base/words.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/variables.h"

namespace tessera::launch {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// The first number in a file; nothing where there is no file or no number ("max").
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  int64_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return number;
}

/// The number after `key` in a file of lines "key number".
std::optional<int64_t> number_after(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return std::nullopt;
}

/// Folders of this process' cgroup and of all above it, for version 2 (controller "") or a controller of
/// version 1. In a container /proc/self/cgroup may give the host's path while only the part below is mounted:
/// folders that are missing are simply looked at in vain.
std::vector<fs::path> cgroup_folders(const fs::path& root, const std::string& controller) {
  std::ifstream in(root / "proc/self/cgroup");
  std::string line, path = "/";
  while (std::getline(in, line)) {  // "4:cpu,cpuacct:/path", version 2 "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool found = controller.empty()
                           ? controllers.empty()
                           : ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (found) path = line.substr(second + 1);
  }
  const fs::path top = root / "sys/fs/cgroup" / controller;
  std::vector<fs::path> folders = {top};
  fs::path folder = top;
  for (const auto& part : fs::path(path).relative_path()) {
    if (part == "..") break;  // another cgroup namespace: only the top is ours to see
    folders.push_back(folder /= part);
  }
  return folders;
}

void lower(int64_t& value, std::optional<int64_t> limit) {
  if (limit) value = std::min(value, std::max<int64_t>(*limit, 0));
}

std::optional<int64_t> cores_of(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return (*quota + *period - 1) / *period;
}

/// limit - usage, page cache that can be dropped not counted as used.
std::optional<int64_t> left(const fs::path& folder, const char* limit, const char* usage, const char* cache) {
  const auto bytes = number_in(folder / limit), used = number_in(folder / usage);
  if (!bytes || !used) return std::nullopt;
  return *bytes - std::max<int64_t>(*used - number_after(folder / "memory.stat", cache).value_or(0), 0);
}

std::mutex kept_mutex;
std::optional<std::set<int>> kept_from;  // the CPUs that threads might run on before stay_on_own_cores()

}  // namespace

std::set<int> allowed_cpus() {
  {
    const std::lock_guard lock(kept_mutex);
    if (kept_from) return *kept_from;
  }
  const std::vector<int> cores = cores_of_thread();
  return {cores.begin(), cores.end()};
}

int64_t cgroup_cores(const fs::path& root) {
  int64_t cores = kNoLimit;
  for (const auto& folder : cgroup_folders(root, "")) {
    std::ifstream in(folder / "cpu.max");  // "150000 100000" or "max 100000"
    int64_t quota = 0, period = 0;
    if (in >> quota >> period) lower(cores, cores_of(quota, period));
  }
  for (const auto& folder : cgroup_folders(root, "cpu")) {
    lower(cores, cores_of(number_in(folder / "cpu.cfs_quota_us"), number_in(folder / "cpu.cfs_period_us")));
  }
  return cores;
}

double busy_cpu_seconds(const fs::path& root, const std::set<int>& cpus) {
  std::ifstream in(root / "proc/stat");
  double ticks = 0;
  // "cpu3 user nice system idle iowait irq softirq steal ..."
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (!name.starts_with("cpu") || name == "cpu" || !cpus.contains(std::stoi(name.substr(3)))) continue;
    int64_t value = 0;
    for (int column = 0; column < 8 && words >> value; ++column) {
      if (column != 3 && column != 4) ticks += static_cast<double>(value);
    }
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int64_t free_memory(const fs::path& root) {
  int64_t bytes = kNoLimit;
  if (const auto available = number_after(root / "proc/meminfo", "MemAvailable:")) bytes = *available * 1024;
  for (const auto& folder : cgroup_folders(root, "")) {
    lower(bytes, left(folder, "memory.max", "memory.current", "inactive_file"));
  }
  for (const auto& folder : cgroup_folders(root, "memory")) {
    lower(bytes, left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
  }
  return bytes;
}

OthersOnCpus::OthersOnCpus()
    : seconds_(clock_seconds(CLOCK_MONOTONIC)),
      busy_(busy_cpu_seconds("/", allowed_cpus())),
      own_(clock_seconds(CLOCK_PROCESS_CPUTIME_ID)) {}

void OthersOnCpus::stop() {
  seconds_ = clock_seconds(CLOCK_MONOTONIC) - seconds_;
  busy_ = busy_cpu_seconds("/", allowed_cpus()) - busy_;
  own_ = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - own_;
}

double OthersOnCpus::share(double own) const {
  const auto cpus = static_cast<double>(allowed_cpus().size());
  const double unsure = 2 * cpus / static_cast<double>(::sysconf(_SC_CLK_TCK));  // a tick at each end
  return std::clamp((busy_ - own - unsure) / std::max(1e-9, seconds_ * cpus), 0.0, 1.0);
}

int64_t available_cores() {
  auto cores = static_cast<int64_t>(allowed_cpus().size());
  lower(cores, cgroup_cores("/"));
  return std::max<int64_t>(cores, 1);
}

bool stay_on_own_cores(int64_t local_rank, int64_t local_world, int64_t threads) {
  const std::set<int> all = allowed_cpus();
  const int64_t share = static_cast<int64_t>(all.size()) / std::max<int64_t>(local_world, 1);
  if (local_world < 2 || share < std::max<int64_t>(threads, 1)) return false;
  const auto first_of = [&](int64_t rank) {
    return std::next(all.begin(), static_cast<int64_t>(all.size()) * rank / local_world);
  };
  const bool stays = keep_thread_on({first_of(local_rank), first_of(local_rank + 1)});
  if (stays) {
    const std::lock_guard lock(kept_mutex);
    kept_from = all;
  }
  return stays;
}

int64_t cores_per_rank(const Ranks& ranks) {
  return std::max<int64_t>(1, available_cores() / std::max<int64_t>(1, ranks.local_world));
}

namespace {

/// Its first number; nothing where the variable is not set.
std::optional<int64_t> openmp_threads() {
  const auto text = variable("OMP_NUM_THREADS");
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  const auto number = parse_number<int64_t>(trimmed(take_until(rest, ",")));
  if (!number || *number < 1) {
    user_error({.where = "launch.threads",
                .problem = concat("OMP_NUM_THREADS is '", escape(*text), "'"),
                .expected = "a number of threads from 1 up",
                .hint = "unset it, or set run.threads, which takes precedence"});
  }
  return number;
}

}  // namespace

int64_t threads_per_rank(int64_t wanted, const Ranks& ranks) {
  if (wanted > 0) return wanted;
  return openmp_threads().value_or(cores_per_rank(ranks));
}

std::string threads_note(int64_t wanted) {
  if (wanted > 0 || !variable("OMP_NUM_THREADS")) return "";
  return concat(*openmp_threads(),
                ", from OMP_NUM_THREADS (run.threads takes precedence; torchrun sets OMP_NUM_THREADS=1 "
                "by itself)");
}

std::string machine_description() {
  utsname system{};
  uname(&system);
  std::string model = "unknown CPU", flags;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) {  // up to the end of the first core's
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) model = line.substr(colon + 2);
    if (line.starts_with("flags")) flags = line.substr(colon + 1) + " ";
  }
  std::string text = concat(system.sysname, " ", system.release, " ", system.machine, "; ", model, ";");
  for (const char* flag : {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}) {
    if (flags.find(concat(" ", flag, " ")) != std::string::npos) text += concat(" ", flag);
  }
  return text;
}

std::vector<std::string> gpu_names(const std::filesystem::path& listed) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& gpu : std::filesystem::directory_iterator(listed, ignored)) {
    std::ifstream facts(gpu.path() / "information");
    for (std::string line; std::getline(facts, line);) {
      if (line.starts_with("Model:")) names.emplace_back(trimmed(std::string_view(line).substr(6)));
    }
  }
  return names;
}

int64_t available_memory() { return free_memory("/"); }

}  // namespace tessera::launch
