// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/text.h"
#include "tessera/formats/pickle.h"

namespace tessera::formats {

using Kind = PickleValue::Kind;

const PickleValue* PickleValue::find(std::string_view key) const {
  for (auto at = entries.rbegin(); at != entries.rend(); ++at) {
    if (at->first->is(Kind::kString) && at->first->text == key) return at->second;
  }
  return nullptr;
}

std::string PickleValue::describe() const {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a string";
    case Kind::kBytes:
      return "bytes";
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kDict:
      return "a dict";
    case Kind::kGlobal:
      return "the class " + escape(text);
    case Kind::kObject:
      return "an object of " + escape(text);
    case Kind::kPersistent:
      return "a reference";
  }
  return "?";
}

}  // namespace tessera::formats
