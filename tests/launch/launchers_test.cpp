// SPDX-License-Identifier: Apache-2.0
// The real launchers of this machine: what they set is what environment_test pretends they set.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tessera/base/error.h"
#include "tests/launch/started.h"

namespace tessera::launch {
namespace {

constexpr const char* kSlurm = TESSERA_SOURCE_DIR "/tests/launch/local_slurm.sh";

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// The text after the last colon: the port.
int port_of(const std::string& line) { return std::stoi(line.substr(line.rfind(':') + 1)); }

TEST(Launchers, OpenMpi) {
  if (std::system("command -v mpirun >/dev/null") != 0)
    GTEST_SKIP() << "mpirun is not installed (openmpi-bin)";
  Started mpirun({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", kChild, "show"});
  ASSERT_EQ(mpirun.wait(60), 0) << mpirun.err();
  const auto lines = sorted_lines(mpirun.out());
  ASSERT_EQ(lines.size(), 3U);
  const int port = port_of(lines[0]);
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(lines[static_cast<size_t>(rank)],
              concat("openmpi ", rank, "/3 local ", rank, "/3 127.0.0.1:", port));
  }
}

TEST(Launchers, Slurm) {
  if (std::system("command -v slurmctld munged >/dev/null") != 0 || ::getuid() != 0) {
    GTEST_SKIP() << "slurm-wlm and munge are not installed, or this is not root";
  }
  const TemporaryFolder folder("slurm");
  const std::string cluster = (folder.path() / "cluster").string();
  Started start({kSlurm, "start", cluster});
  ASSERT_EQ(start.wait(60), 0) << start.err();
  ::setenv("SLURM_CONF", (cluster + "/slurm.conf").c_str(), 1);
  Started srun({"srun", "-n", "3", kChild, "show"});
  EXPECT_EQ(srun.wait(60), 0) << srun.err();
  Started salloc({"salloc", "-n", "3", kChild, "show"});
  EXPECT_EQ(salloc.wait(60), 0) << salloc.err();
  // Not `sbatch --wait`: it looks every ten seconds.
  const std::string output = (folder.path() / "batch").string();
  Started batch({"sbatch", "-n", "3", "-o", "/dev/null", "--wrap",
                 concat(kChild, " show > ", output, "; echo 1 > @/part; mv @/part @/done")});
  EXPECT_EQ(batch.wait(60), 0) << batch.err();
  EXPECT_EQ(batch.told("done"), 1);
  EXPECT_EQ(read_file(output), "single 0/1 local 0/1 127.0.0.1:0\n");
  ::unsetenv("SLURM_CONF");
  Started stop({kSlurm, "stop", cluster});
  EXPECT_EQ(stop.wait(60), 0) << stop.err();
  EXPECT_FALSE(std::filesystem::exists(cluster));

  const auto lines = sorted_lines(srun.out());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(port_of(lines[0]), 20001);  // the cluster's first job
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(lines[static_cast<size_t>(rank)],
              concat("slurm ", rank, "/3 local ", rank, "/3 127.0.0.1:20001"));
  }
  EXPECT_EQ(salloc.out(), "single 0/1 local 0/1 127.0.0.1:0\n");
}

}  // namespace
}  // namespace tessera::launch
