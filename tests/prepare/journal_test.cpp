// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/journal.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::prepare {
namespace {
namespace fs = std::filesystem;

TEST(Journal, OfNumbersThatCannotBeIsRefused) {
  const TemporaryFolder folder("tessera-pack");
  const fs::path path = folder.path() / "pack.jsonl";
  const auto error = [&](const std::string& part) {
    write_file_atomic(path, "{\"command\":{}}\n" + part + "\n");
    return error_text([&] { Journal(folder.path(), {}); });
  };
  const auto part = [](const char* end, int samples) {
    return concat("{\"split\":\"train\",\"end\":", end, ",\"samples\":", samples,
                  ",\"jpegs\":0,\"bytes\":9,\"left_out\":[]}");
  };
  EXPECT_EQ(error(part("5", 5)), "no error");
  EXPECT_EQ(error(part("5", 5) + "\n" + part("9", 4)), "no error");
  EXPECT_EQ(error(part("5", 5) + "\n" + part("8", 4)),
            concat("[prepare.journal] ", path.string(),
                   " has a part of 4 samples that ends at 8, after 5: expected parts that follow each other; "
                   "choose another folder"));
  EXPECT_EQ(error(part("1e99", 5)),
            "[prepare.journal] the journal of an earlier run has the value 1e+99: expected a whole number");
}

}  // namespace
}  // namespace tessera::prepare
