// SPDX-License-Identifier: Apache-2.0
// Any bytes as metrics.jsonl: rows that, written and read again, stay the same.
#include "tessera/base/error.h"
#include "tessera/monitor/metrics_row.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::monitor;
  const History first = parse_history({reinterpret_cast<const char*>(data), size}, 1000);
  const std::string text = to_jsonl(first);
  const History second = parse_history(text, 1000);
  TESSERA_CHECK_EQ(second.damaged, 0);
  TESSERA_CHECK_EQ(to_jsonl(second), text);
  return 0;
}
