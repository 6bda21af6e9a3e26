// SPDX-License-Identifier: Apache-2.0
// A pack.jsonl of any bytes: what is accepted is read again as the same, also after a part was added.
#include <cstdint>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/prepare/journal.h"

namespace {

using namespace tessera;

bool same(const prepare::SealedPart& a, const prepare::SealedPart& b) {
  return a.split == b.split && a.end == b.end && a.samples == b.samples && a.jpegs == b.jpegs &&
         a.bytes == b.bytes && a.left_out == b.left_out;
}

void expect(bool good) {
  if (!good) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const TemporaryFolder folder("tessera-journal");
  write_file_atomic(folder.path() / "pack.jsonl", {reinterpret_cast<const char*>(bytes), size});
  try {
    std::vector<prepare::SealedPart> before;
    {
      prepare::Journal journal(folder.path(), {});
      before = journal.parts("train");
      int64_t end = 0;
      for (const prepare::SealedPart& part : before) {
        expect(part.samples >= 0 && part.jpegs >= 0 && part.jpegs <= part.samples &&
               part.end - end >= part.samples);
        end = part.end;
      }
      if (end > INT64_MAX - 2) return 0;
      before.push_back({"train", end + 2, 1, 1, 7, {"n01/2.jpg"}});
      journal.add(before.back());
    }
    const prepare::Journal again(folder.path(), {});
    const auto after = again.parts("train");
    expect(after.size() == before.size());
    for (size_t i = 0; i < after.size(); ++i) expect(same(after[i], before[i]));
  } catch (const UserError&) {
  }
  return 0;
}
