// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "tessera/base/error.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/slurm.h"
#include "tessera/launch/surroundings.h"

namespace tessera::launch {
namespace {

using Variables = std::map<std::string, std::string>;

/// Only these of the variables that any launcher sets; what was there comes back at the end.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const size_t equals = text.find('=');
      before_[text.substr(0, equals)] = text.substr(equals + 1);
    }
    ::clearenv();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    ::clearenv();
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Variables before_;
};

std::string show(const Ranks& r) {
  return concat(r.launcher, " ", r.rank, "/", r.world, " local ", r.local_rank, "/", r.local_world, " ",
                r.master_host, ":", r.master_port, r.master_is_served ? " served" : "");
}

/// The ranks as one line, or the text of the error.
std::string ranks_of(const Variables& variables) {
  const Environment environment(variables);
  try {
    return show(ranks_from_environment());
  } catch (const UserError& error) {
    return error.what();
  }
}

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Variables kLocal = {{"TESSERA_RANK", "1"},
                          {"TESSERA_WORLD_SIZE", "2"},
                          {"TESSERA_LOCAL_RANK", "1"},
                          {"TESSERA_LOCAL_WORLD_SIZE", "2"},
                          {"TESSERA_MASTER_ADDR", "127.0.0.1"},
                          {"TESSERA_MASTER_PORT", "4000"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kPlain = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1146421249"},    {"PMIX_RANK", "1"}};
const Variables kSlurm = {{"SLURM_PROCID", "4"},
                          {"SLURM_NTASKS", "9"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_NODELIST", "other[1-9]"},
                          {"SLURM_STEP_NODELIST", "node[003-005,9],gpu1"},
                          {"SLURM_JOB_ID", "1234567"},
                          {"SLURM_STEP_ID", "0"}};

TEST(Environment, AWorldOfOneWhereNothingIsSet) {
  EXPECT_EQ(ranks_of({}), "single 0/1 local 0/1 127.0.0.1:0");
  EXPECT_EQ(ranks_of({{"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", "x"}, {"LOCAL_RANK", "3"}}),
            "single 0/1 local 0/1 127.0.0.1:0");
}

TEST(Environment, LocalRanks) {
  EXPECT_EQ(ranks_of(kLocal), "local 1/2 local 1/2 127.0.0.1:4000");
  // Local ranks inside any launcher's process are what their parent says.
  EXPECT_EQ(ranks_of(with(with(with(kLocal, kTorchrun), kOpenMpi), kSlurm)),
            "local 1/2 local 1/2 127.0.0.1:4000");
  EXPECT_EQ(ranks_of({{"TESSERA_RANK", "0"},
                      {"TESSERA_WORLD_SIZE", "1"},
                      {"TESSERA_LOCAL_RANK", "0"},
                      {"TESSERA_LOCAL_WORLD_SIZE", "1"}}),
            "local 0/1 local 0/1 127.0.0.1:0");
  for (const auto& [name, value] : kLocal) {
    if (name == "TESSERA_RANK") continue;
    EXPECT_EQ(ranks_of(with(kLocal, {{name, ""}})),
              concat("[launch.environment] ", name, " is not set, but TESSERA_RANK is"));
  }
  EXPECT_EQ(ranks_of(with(kLocal, {{"TESSERA_RANK", "2"}})),
            "[launch.environment] TESSERA_RANK is '2': expected an integer from 0 to 1");
}

TEST(Environment, TheListeningSocketIsNotHandedOn) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const std::string number = std::to_string(fd);
  EXPECT_EQ(
      ranks_of(with(kLocal, {{"TESSERA_MASTER_LISTEN_FD", number}})),
      concat("[launch.environment] TESSERA_MASTER_LISTEN_FD is ", number,
             ", which is not a listening socket; unset it: only the program itself sets this variable"));
  ASSERT_EQ(::listen(fd, 1), 0);
  {
    const Environment environment(with(kLocal, {{"TESSERA_MASTER_LISTEN_FD", number}}));
    EXPECT_EQ(ranks_from_environment().master_listen_fd, fd);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ::close(fd);
}

TEST(Environment, Torchrun) {
  EXPECT_EQ(ranks_of(kTorchrun), "torchrun 5/8 local 1/4 node1:29500 served");
  EXPECT_EQ(ranks_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})),
            "torchrun 5/8 local 1/4 node1:29500");
  EXPECT_EQ(ranks_of(with(with(kTorchrun, kOpenMpi), kSlurm)), "torchrun 5/8 local 1/4 node1:29500 served");
}

TEST(Environment, PlainRankVariables) {
  EXPECT_EQ(ranks_of(kPlain), "environment 1/4 local 0/1 10.0.0.7:29500");
  for (const auto* host : {"127.0.0.1", "localhost", "::1"}) {
    EXPECT_EQ(ranks_of(with(kPlain, {{"MASTER_ADDR", host}})),
              concat("environment 1/4 local 1/4 ", host, ":29500"));
  }
  EXPECT_EQ(ranks_of(with(kPlain, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}})),
            "environment 1/4 local 1/2 10.0.0.7:29500");
  EXPECT_EQ(ranks_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "environment 0/1 local 0/1 127.0.0.1:0");
}

TEST(Environment, PlainRankVariablesThatMissOrContradict) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"RANK", "0"}}, "WORLD_SIZE is not set, but RANK is"},
      {{{"WORLD_SIZE", "2"}}, "RANK is not set, but WORLD_SIZE is"},
      {with(kPlain, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set, but WORLD_SIZE is"},
      {with(kPlain, {{"MASTER_PORT", ""}}), "MASTER_PORT is not set, but WORLD_SIZE is"},
      {with(kPlain, {{"MASTER_PORT", "65536"}}),
       "MASTER_PORT is '65536': expected an integer from 1 to 65535"},
      {with(kPlain, {{"MASTER_PORT", "29500 "}}),
       "MASTER_PORT is '29500 ': expected an integer from 1 to 65535"},
      {with(kPlain, {{"RANK", "4"}}), "RANK is '4': expected an integer from 0 to 3"},
      {with(kPlain, {{"RANK", "-1"}}), "RANK is '-1': expected an integer from 0 to 3"},
      {with(kPlain, {{"RANK", "one"}}), "RANK is 'one': expected an integer from 0 to 3"},
      {with(kPlain, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE is '0': expected an integer from 1 to 2147483648"},
      {with(kPlain, {{"WORLD_SIZE", "99999999999999999999"}}),
       "WORLD_SIZE is '99999999999999999999': expected an integer from 1 to 2147483648"},
      {with(kPlain, {{"LOCAL_RANK", "1"}}), "LOCAL_WORLD_SIZE is not set, but LOCAL_RANK is"},
      {with(kPlain, {{"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_RANK is not set, but LOCAL_WORLD_SIZE is"},
      {with(kPlain, {{"LOCAL_WORLD_SIZE", "5"}}), "LOCAL_WORLD_SIZE is '5': expected an integer from 1 to 4"},
      {with(kPlain, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
       "LOCAL_RANK is '2': expected an integer from 0 to 1"},
  };
  for (const auto& [variables, message] : cases) {
    EXPECT_EQ(ranks_of(variables), "[launch.environment] " + message);
  }
}

TEST(Environment, OpenMpi) {
  const std::string ranks = ranks_of(kOpenMpi);
  EXPECT_TRUE(ranks.starts_with("openmpi 1/2 local 1/2 127.0.0.1:2")) << ranks;
  EXPECT_EQ(ranks, ranks_of(kOpenMpi));
  EXPECT_EQ(ranks, ranks_of(with(kSlurm, kOpenMpi)));  // mpirun in a Slurm job
  EXPECT_NE(ranks, ranks_of(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-77@1"}})));
  EXPECT_EQ(ranks,
            ranks_of(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", "1146421249"}})));
  const Variables hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_EQ(ranks_of(with(hosts, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1"}})),
            "openmpi 3/4 local 1/2 node1:1");
  EXPECT_EQ(ranks_of(hosts),
            "[launch.environment] MASTER_ADDR is not set, but mpirun started ranks on several hosts: "
            "expected the host of rank 0; start with mpirun -x MASTER_ADDR=<first host>");
  EXPECT_EQ(ranks_of(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}})),
            "[launch.environment] MASTER_PORT is not set, and mpirun gave no PMIX_NAMESPACE to derive a port "
            "from; start with mpirun -x MASTER_PORT=29500");
  EXPECT_EQ(ranks_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", ""}})),
            "[launch.environment] OMPI_COMM_WORLD_SIZE is not set, but OMPI_COMM_WORLD_RANK is");
  EXPECT_EQ(ranks_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "openmpi 0/1 local 0/1 127.0.0.1:0");
  EXPECT_EQ(ranks_of({{"PMIX_RANK", "0"}}),
            "[launch.environment] PMIX_RANK is set, but RANK and WORLD_SIZE are not, so the number of ranks "
            "is unknown; start with mpirun or srun");
}

TEST(Environment, Slurm) {
  EXPECT_EQ(ranks_of(kSlurm), "slurm 4/5 local 0/1 node003:24567");  // 20000 + job mod 10000
  EXPECT_EQ(ranks_of(with(kSlurm, {{"SLURM_STEP_ID", "1"}})), "slurm 4/5 local 0/1 node003:25564");
  EXPECT_EQ(ranks_of(with(kSlurm, {{"MASTER_ADDR", "ib0"}, {"MASTER_PORT", "7"}})),
            "slurm 4/5 local 0/1 ib0:7");
  EXPECT_EQ(ranks_of(with(kSlurm, {{"SLURM_STEP_NODELIST", ""}, {"SLURM_STEP_NUM_TASKS", ""}})),
            "slurm 4/9 local 0/1 other1:24567");
  // One host: no name to resolve.
  EXPECT_EQ(ranks_of({{"SLURM_PROCID", "1"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODELIST", "node7"},
                      {"SLURM_JOB_ID", "12"}}),
            "slurm 1/2 local 1/2 127.0.0.1:20012");
  EXPECT_EQ(ranks_of({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "0"}}),
            "slurm 0/1 local 0/1 127.0.0.1:0");
}

TEST(Environment, ASlurmJobOutsideOfSrunIsAWorldOfOne) {
  const std::string single = "single 0/1 local 0/1 127.0.0.1:0";
  const Variables job = {{"SLURM_JOB_ID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_NODELIST", "vm"}};
  EXPECT_EQ(ranks_of(job), single);  // the shell of salloc
  EXPECT_EQ(ranks_of(with(job, {{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}})), single);
  EXPECT_EQ(ranks_of(with(job, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}})), single);
  EXPECT_EQ(ranks_of(with(job, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967291"}})), single);
  EXPECT_EQ(ranks_of(with(kSlurm, {{"ENVIRONMENT", "BATCH"}})), ranks_of(kSlurm));  // srun in a batch script
}

TEST(Environment, SlurmVariablesThatMissOrContradict) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_NTASKS", ""}}),
       "SLURM_NTASKS is not set, but SLURM_PROCID is"},
      {with(kSlurm, {{"SLURM_PROCID", "5"}}), "SLURM_PROCID is '5': expected an integer from 0 to 4"},
      {with(kSlurm, {{"SLURM_LOCALID", ""}}), "SLURM_LOCALID is not set, but SLURM_PROCID is"},
      {with(kSlurm, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID is '1': expected an integer from 0 to 0"},
      {with(kSlurm, {{"SLURM_JOB_ID", ""}}), "SLURM_JOB_ID is not set, but SLURM_PROCID is"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", ""}, {"SLURM_NODELIST", ""}}),
       "SLURM_JOB_NODELIST is not set, but SLURM_PROCID is"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "node["}}),
       "SLURM_NODELIST is 'node[': expected a list like node[003-005,9],gpu1"},
      {with(kSlurm, {{"SLURM_NODEID", "3"}}),
       "SLURM_TASKS_PER_NODE is '2(x2),1': expected a list like 2(x3),1 with an entry for SLURM_NODEID"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_NNODES", "3"}}),
       "SLURM_TASKS_PER_NODE is not set, but SLURM_NNODES is above 1"},
      {with(kSlurm, {{"SLURM_STEP_ID", "x"}}),
       "SLURM_STEP_ID is 'x': expected an integer from 0 to 9223372036854775807"},
  };
  for (const auto& [variables, message] : cases) {
    EXPECT_EQ(ranks_of(variables), "[launch.environment] " + message);
  }
}

TEST(Environment, ARankVariableBesideALauncherHasToAgree) {
  EXPECT_EQ(ranks_of(with(kSlurm, {{"WORLD_SIZE", "5"}})), ranks_of(kSlurm));
  EXPECT_EQ(ranks_of(with(kSlurm, {{"WORLD_SIZE", "8"}})),
            "[launch.environment] WORLD_SIZE is 8, but slurm says 5; unset WORLD_SIZE");
  EXPECT_EQ(ranks_of(with(kOpenMpi, {{"RANK", "0"}})),
            "[launch.environment] RANK is 0, but openmpi says 1; unset RANK");
}

TEST(Slurm, FirstHost) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"node1", "node1"},
      {"a,b", "a"},
      {"node[003-005,9],gpu1", "node003"},
      {"node[7,9-12]", "node7"},
      {"node[12]", "node12"},
      {"gpu-a-[1-2].cluster", "gpu-a-1.cluster"},
      {"rack[2-3]node[08-10]", "rack2node08"},
      {"node[1-2]-ib,node[5-6]", "node1-ib"},
  };
  for (const auto& [list, host] : cases) EXPECT_EQ(first_host(list), host) << list;
  for (const auto* list : {"", ",", "[", "node[", "node[]", "node[-3]", "node]", "node[1", ",node1"}) {
    try {
      first_host(list);
      ADD_FAILURE() << "accepted: " << list;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), concat("[launch.environment] SLURM_NODELIST is '", list,
                                     "': expected a list like node[003-005,9],gpu1"));
    }
  }
}

TEST(Slurm, TasksOnNode) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("2(x3),1,16(x1000)", 1003), 16);
  for (const auto* list : {"", "0", "x", "2(x", "2(x3", "2(x0)", "2(x3)", "2,", "2(x3),"}) {
    EXPECT_THROW(tasks_on_node(list, 3), UserError) << list;
  }
}

TEST(LibraryVariables, AreRecordedByName) {
  {
    const Environment none({{"HOME", "/"}, {"OMPI_COMM_WORLD_RANK", "0"}});
    EXPECT_EQ(library_variables(), "nothing set");
  }
  const Environment some({{"OMP_WAIT_POLICY", "passive"}, {"GOMP_SPINCOUNT", "0"}, {"PATH", "/bin"}});
  EXPECT_EQ(library_variables(), "GOMP_SPINCOUNT=0, OMP_WAIT_POLICY=passive");
}

}  // namespace
}  // namespace tessera::launch
