// SPDX-License-Identifier: Apache-2.0
// Split expressions: what is accepted names its pieces, each means the same alone, and selects samples of the
// split, each once and in order.
#include <cstdint>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/data/split.h"

namespace {

using namespace tessera;

class Ten : public data::Source {
 public:
  int64_t size() const override { return 10; }
  int64_t label(int64_t) const override { return 0; }
  data::Stored load(int64_t) const override { return {}; }
  std::string sample_name(int64_t index) const override { return std::to_string(index); }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  std::vector<std::string> classes_ = {"one"};
};

void expect(bool good) {
  if (!good) std::abort();
}

void check(const data::SplitTerm& piece) {
  const auto again = data::parse_splits(piece.text);
  expect(again.size() == 1 && again[0].name == piece.name && again[0].sliced == piece.sliced &&
         again[0].file_order == piece.file_order && again[0].from == piece.from && again[0].to == piece.to);
  int64_t last = -1;
  for (const int64_t index : data::select(Ten(), piece)) {
    expect(index > last && index < 10);
    last = index;
  }
  expect(last >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    for (const auto& piece : data::parse_splits({reinterpret_cast<const char*>(bytes), size})) check(piece);
  } catch (const UserError&) {
  }
  return 0;
}
