// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/find_torch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::launch {
namespace {
namespace fs = std::filesystem;

/// A made-up machine: packages of torch, Pythons and the environment of a process.
class MachineWithTorch {
 public:
  MachineWithTorch() : folder_("find-torch") {
    fs::create_directories(prefix() / "lib");
    variables["PATH"] = "/nowhere";
  }

  fs::path path(const fs::path& relative) const { return folder_.path() / relative; }
  fs::path prefix() const { return path("tessera"); }

  fs::path add_torch(const fs::path& relative, const std::string& version) const {
    const fs::path package = path(relative);
    fs::create_directories(package / "lib");
    std::ofstream(package / "lib" / "libtorch_cpu.so") << "a library";
    std::ofstream(package / "version.py")
        << "__all__ = ['__version__']\n__version__ = '" << version << "'\ncuda = '13.0'\n";
    return package;
  }

  fs::path add_python(const fs::path& relative, const std::string& text =
                                                    "\x7f"
                                                    "ELF") const {
    const fs::path python = path(relative);
    fs::create_directories(python.parent_path());
    std::ofstream(python) << text;
    fs::permissions(python, fs::perms::owner_all);
    return python;
  }

  fs::path found() const {
    return find_torch({prefix(), "2.11.0", [this](const char* name) {
                         const auto value = variables.find(name);
                         return value == variables.end() ? nullptr : value->second.c_str();
                       }});
  }
  std::string error() const {
    return error_text([&] { found(); });
  }

  std::map<std::string, std::string> variables;

 private:
  TemporaryFolder folder_;
};

TEST(FindTorch, PlacesAreTriedInTheirOrder) {
  MachineWithTorch machine;
  const fs::path of_path = machine.add_torch("usr/lib/python3.12/site-packages/torch", "2.11.0+cu130");
  machine.variables["PATH"] = "/nowhere:" + machine.add_python("usr/bin/python3").parent_path().string();
  EXPECT_EQ(machine.found(), of_path);

  const fs::path of_environment = machine.add_torch("venv/lib/python3.11/site-packages/torch", "2.11.0+cpu");
  machine.variables["VIRTUAL_ENV"] = machine.path("venv").string();
  EXPECT_EQ(machine.found(), of_environment);

  const fs::path recorded = machine.add_torch("checkout/torch", "2.11.0");
  std::ofstream(machine.prefix() / "lib" / "torch.path") << recorded.string() << "\n";
  EXPECT_EQ(machine.found(), recorded);

  const fs::path beside = machine.add_torch("tessera/lib/torch", "2.11.0");
  EXPECT_EQ(machine.found(), beside);

  const fs::path given = machine.add_torch("given", "2.11.0");
  machine.variables["TESSERA_TORCH_DIR"] = given.string();
  EXPECT_EQ(machine.found(), given);
}

TEST(FindTorch, EmptyVariablesCountAsNotSet) {
  MachineWithTorch machine;
  const fs::path beside = machine.add_torch("tessera/lib/torch", "2.11.0");
  machine.variables["TESSERA_TORCH_DIR"] = machine.variables["VIRTUAL_ENV"] = "";
  EXPECT_EQ(machine.found(), beside);
}

// A record of a folder that is gone, as after a checkout was moved, does not hide what comes behind it.
TEST(FindTorch, PlacesWithoutTorchOrOfOtherVersionsArePassedOver) {
  MachineWithTorch machine;
  std::ofstream(machine.prefix() / "lib" / "torch.path") << machine.path("gone").string() << "\n";
  machine.add_torch("venv/lib/python3.11/site-packages/torch", "2.9.1");
  machine.variables["VIRTUAL_ENV"] = machine.path("venv").string();
  const fs::path right = machine.add_torch("usr/local/lib/python3.12/dist-packages/torch", "2.11.0");
  machine.variables["PATH"] = machine.add_python("usr/bin/python3").parent_path().string();
  EXPECT_EQ(machine.found(), right);
}

TEST(FindTorch, LinksOfPythonAreFollowedOneByOne) {
  MachineWithTorch machine;
  const fs::path system = machine.add_python("usr/bin/python3");
  machine.add_torch("usr/lib/python3/dist-packages/torch", "2.9.0");
  const fs::path wanted = machine.add_torch("opt/venv/lib/python3.12/site-packages/torch", "2.11.0");
  fs::create_directories(machine.path("opt/venv/bin"));
  fs::create_symlink(system, machine.path("opt/venv/bin/python3"));
  fs::create_directories(machine.path("shortcuts"));
  fs::create_symlink("../opt/venv/bin/python3", machine.path("shortcuts/python3"));
  machine.variables["PATH"] = machine.path("shortcuts").string();
  EXPECT_EQ(machine.found(), wanted);
}

TEST(FindTorch, AWrongVersionHidesNoRightOneBehindTheNextLink) {
  MachineWithTorch machine;
  machine.add_torch("opt/venv/lib/python3.12/site-packages/torch", "2.9.0");
  fs::create_directories(machine.path("opt/venv/bin"));
  fs::create_symlink(machine.add_python("usr/bin/python3"), machine.path("opt/venv/bin/python3"));
  const fs::path wanted = machine.add_torch("usr/lib/python3/dist-packages/torch", "2.11.0");
  machine.variables["PATH"] = machine.path("opt/venv/bin").string();
  EXPECT_EQ(machine.found(), wanted);
}

TEST(FindTorch, APythonThatIsAScriptIsAsked) {
  MachineWithTorch machine;
  const fs::path wanted = machine.add_torch("it's here/torch", "2.11.0");
  machine.variables["PATH"] =
      machine.add_python("shims that's/python3", "#!/bin/sh\necho \"" + wanted.string() + "\"\n")
          .parent_path()
          .string();
  EXPECT_EQ(machine.found(), wanted);
  machine.add_python("shims that's/python3", "#!/bin/sh\nexit 1\n");
  EXPECT_NE(machine.error(), "");
}

TEST(FindTorch, APythonThatSaysNothingIsNotWaitedForLong) {
  MachineWithTorch machine;
  machine.variables["PATH"] =
      machine.add_python("shims/python3", "#!/bin/sh\nsleep 600 & sleep 600\n").parent_path().string();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(machine.error(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(FindTorch, VersionsAreReadFromShortFilesAlone) {
  const MachineWithTorch machine;
  const auto version_of = [&](const std::string& name, const std::string& version) {
    return torch_version(machine.add_torch(name + "/torch", version));
  };
  EXPECT_EQ(version_of("built", "2.11.0+cu130"), "2.11.0");
  EXPECT_EQ(version_of("early", "2.11.0a0+git123"), "2.11.0a0");
  EXPECT_NE(version_of("endless", "2.11.0" + std::string(10 << 20, '0')), "2.11.0");
  const fs::path pipe = machine.add_torch("pipe/torch", "2.11.0");
  fs::remove(pipe / "version.py");
  ASSERT_EQ(::mkfifo((pipe / "version.py").c_str(), 0600), 0);
  EXPECT_EQ(torch_version(pipe), "");
}

TEST(FindTorch, ErrorsNameEveryPlaceAndWhatToDo) {
  MachineWithTorch machine;
  machine.add_torch("venv/lib/python3.11/site-packages/torch", "2.9.1+cu128");
  machine.variables["VIRTUAL_ENV"] = machine.path("venv").string();
  const std::string error = machine.error();
  for (const std::string& part :
       {std::string("[cli.torch] torch 2.11.0 was not found"), machine.path("venv").string() + ": 2.9.1",
        std::string("python3 (not on PATH): none"), std::string("pip install torch==2.11.0"),
        std::string("TESSERA_TORCH_DIR")}) {
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nlacks: " << part;
  }
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(FindTorch, RefusesAPackageWithALibraryThatWasCutShort) {
  MachineWithTorch machine;
  const fs::path package = machine.add_torch("venv/lib/python3.11/site-packages/torch", "2.11.0");
  machine.variables["VIRTUAL_ENV"] = machine.path("venv").string();
  const fs::path library = package / "lib" / "libc10.so";
  fs::copy_file("/proc/self/exe", library);  // any ELF file
  EXPECT_EQ(machine.found(), package);
  const uint64_t whole = fs::file_size(library);
  fs::resize_file(library, whole - 1);
  EXPECT_THAT(machine.error(), testing::HasSubstr(concat("libc10.so is incomplete: it has ", whole - 1,
                                                         " bytes: expected ", whole, " bytes; ")));
  machine.variables["TESSERA_TORCH_DIR"] = package.string();
  EXPECT_THAT(machine.error(), testing::HasSubstr("is incomplete"));
  fs::resize_file(library, 0);
  EXPECT_THAT(machine.error(), testing::HasSubstr("is incomplete: it has 0 bytes; install torch again"));
}

TEST(FindTorch, AWrongTesseraTorchDirIsAnError) {
  MachineWithTorch machine;
  machine.add_torch("tessera/lib/torch", "2.11.0");  // not taken in its place
  machine.variables["TESSERA_TORCH_DIR"] = machine.path("empty").string();
  EXPECT_NE(machine.error().find("which has no lib/libtorch_cpu.so"), std::string::npos) << machine.error();
  machine.variables["TESSERA_TORCH_DIR"] = machine.add_torch("older", "2.10.0").string();
  EXPECT_NE(machine.error().find("which holds torch 2.10.0: expected torch 2.11.0"), std::string::npos)
      << machine.error();
}

TEST(FindTorch, AnArchiveOfLibTorchSaysItsVersionInBuildVersion) {
  MachineWithTorch machine;
  const fs::path package = machine.add_torch("tessera/lib/torch", "2.11.0");
  fs::remove(package / "version.py");
  EXPECT_EQ(torch_version(package), "");
  std::ofstream(package / "build-version") << "2.11.0+cpu\n";
  EXPECT_EQ(torch_version(package), "2.11.0");
  EXPECT_EQ(machine.found(), package);
}

}  // namespace
}  // namespace tessera::launch
