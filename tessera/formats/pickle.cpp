// SPDX-License-Identifier: Apache-2.0
// The opcodes are those of CPython's pickletools, where each is explained.
#include "tessera/formats/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::formats {

using Kind = PickleValue::Kind;

class PickleReader {
 public:
  PickleReader(std::span<const std::byte> bytes, const std::function<bool(std::string_view)>& known,
               const std::string& where)
      : bytes_(bytes), known_(known), where_(where) {}

  Pickle run() {
    if (bytes_.size() > kMaxBytes) broken(concat(bytes_.size(), " bytes"), concat("at most ", kMaxBytes));
    while (true) {
      start_ = position_;
      const auto code = static_cast<uint8_t>(number(1));
      if (code == '.') break;
      if (!marks_and_memo(code) && !plain_value(code) && !text_value(code) && !container(code) &&
          !call(code)) {
        char text[8];
        std::snprintf(text, sizeof text, "0x%02x", code);
        broken(concat("operation ", text), "operations that hold data");
      }
    }
    if (stack_.size() != 1 || !marks_.empty()) broken("the stack does not end with one value");
    pickle_.root_ = stack_.back();
    pickle_.size_ = position_;
    return std::move(pickle_);
  }

 private:
  static constexpr size_t kMaxBytes = size_t{1} << 28, kMaxValues = 10'000'000, kMaxProtocol = 5;

  [[noreturn]] void broken(const std::string& problem, const std::string& expected = "") const {
    user_error(
        {.where = "formats.pickle",
         .problem = concat("bad pickle: ", problem, " (", where_, ", byte ", start_, " of the pickle)"),
         .expected = expected});
  }

  // Reading.
  std::span<const std::byte> take(uint64_t size) {
    if (size > bytes_.size() - position_) broken("it is cut off");
    const auto taken = bytes_.subspan(position_, size);
    position_ += size;
    return taken;
  }
  uint64_t number(size_t width) {
    const auto bytes = take(width);
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
    return value;
  }
  std::string text(uint64_t size) {
    const auto bytes = take(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + position_,
                                bytes_.size() - position_);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) broken("it is cut off");
    position_ += end + 1;
    return std::string(rest.substr(0, end));
  }

  // The stack.
  PickleValue& make(Kind kind) {
    if (pickle_.values_.size() >= kMaxValues) broken("too many values", concat("at most ", kMaxValues));
    auto& value = pickle_.values_.emplace_back();
    value.kind = kind;
    return value;
  }
  PickleValue& push(Kind kind) {
    PickleValue& value = make(kind);
    stack_.push_back(&value);
    return value;
  }
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) broken("no value is on the stack");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) broken("no mark is on the stack");
    std::vector<PickleValue*> values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                                     stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  PickleValue& top() {
    PickleValue* value = pop();
    stack_.push_back(value);
    return *value;
  }
  PickleValue* pop(Kind kind, const char* expected) {
    PickleValue* value = pop();
    if (!value->is(kind)) broken(value->describe(), expected);
    return value;
  }

  // The operations, by kind; false: not one of these.
  bool marks_and_memo(uint8_t code) {
    switch (code) {
      case 0x80:  // PROTO
        if (const auto protocol = number(1); protocol > kMaxProtocol) {
          broken(concat("protocol ", protocol), concat("protocol ", kMaxProtocol, " or older"));
        }
        return true;
      case 0x95:
        number(8);
        return true;  // FRAME: how far to read ahead
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case 'q':
        memo_[number(1)] = &top();
        return true;
      case 'r':
        memo_[number(4)] = &top();
        return true;
      case 0x94:
        memo_[memo_.size()] = &top();
        return true;  // MEMOIZE
      case 'h':
        recall(number(1));
        return true;
      case 'j':
        recall(number(4));
        return true;
      default:
        return false;
    }
  }
  void recall(uint64_t key) {
    const auto at = memo_.find(key);
    if (at == memo_.end()) broken(concat("no value is remembered as ", key));
    stack_.push_back(at->second);
  }

  bool plain_value(uint8_t code) {
    switch (code) {
      case 'N':
        push(Kind::kNone);
        return true;
      case 0x88:
        push(Kind::kBool).flag = true;
        return true;
      case 0x89:
        push(Kind::kBool);
        return true;
      case 'J':
        push(Kind::kInt).number = static_cast<int32_t>(number(4));
        return true;
      case 'K':
        push(Kind::kInt).number = static_cast<int64_t>(number(1));
        return true;
      case 'M':
        push(Kind::kInt).number = static_cast<int64_t>(number(2));
        return true;
      case 0x8a:
        long_integer(number(1));
        return true;
      case 0x8b:
        long_integer(number(4));
        return true;
      case 'G': {  // eight bytes, the highest first
        uint64_t bits = 0;
        for (const std::byte byte : take(8)) bits = bits << 8 | std::to_integer<uint64_t>(byte);
        push(Kind::kFloat).real = std::bit_cast<double>(bits);
        return true;
      }
      default:
        return false;
    }
  }
  void long_integer(uint64_t width) {  // two's complement
    if (width > 8) broken(concat("a whole number of ", width, " bytes"), "at most 64 bits");
    uint64_t value = number(width);
    if (width > 0 && width < 8 && (value >> (8 * width - 1) & 1) != 0) value |= ~uint64_t{0} << (8 * width);
    push(Kind::kInt).number = static_cast<int64_t>(value);
  }

  bool text_value(uint8_t code) {
    struct Text {
      uint8_t code;
      Kind kind;
      size_t width;  // of its length
    };
    static constexpr std::array<Text, 8> kTexts = {{{'X', Kind::kString, 4},
                                                    {0x8c, Kind::kString, 1},
                                                    {0x8d, Kind::kString, 8},
                                                    {'U', Kind::kString, 1},  // Python 2's str
                                                    {'T', Kind::kString, 4},
                                                    {'B', Kind::kBytes, 4},
                                                    {'C', Kind::kBytes, 1},
                                                    {0x8e, Kind::kBytes, 8}}};
    const auto at =
        std::find_if(kTexts.begin(), kTexts.end(), [&](const Text& text) { return text.code == code; });
    if (at == kTexts.end()) return false;
    push_text(at->kind, number(at->width));
    return true;
  }
  void push_text(Kind kind, uint64_t size) {
    auto bytes = text(size);
    push(kind).text = std::move(bytes);
  }

  bool container(uint8_t code) {
    switch (code) {
      case ']':
        push(Kind::kList);
        return true;
      case ')':
        push(Kind::kTuple);
        return true;
      case '}':
        push(Kind::kDict);
        return true;
      case 'l':
        collect(Kind::kList, pop_to_mark());
        return true;
      case 't':
        collect(Kind::kTuple, pop_to_mark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87: {  // TUPLE1 to TUPLE3
        std::vector<PickleValue*> values(code - 0x84);
        for (auto at = values.rbegin(); at != values.rend(); ++at) *at = pop();
        collect(Kind::kTuple, values);
        return true;
      }
      case 'd': {
        const auto values = pop_to_mark();
        set_items(push(Kind::kDict), values);
        return true;
      }
      case 'a':
        append({pop()});
        return true;
      case 'e':
        append(pop_to_mark());
        return true;
      case 's': {
        PickleValue* value = pop();
        PickleValue* key = pop();
        set_items(top(), {key, value});
        return true;
      }
      case 'u': {
        const auto values = pop_to_mark();
        set_items(top(), values);
        return true;
      }
      default:
        return false;
    }
  }
  void collect(Kind kind, const std::vector<PickleValue*>& values) {
    push(kind).items.assign(values.begin(), values.end());
  }
  void append(const std::vector<PickleValue*>& values) {
    PickleValue& list = top();
    if (!list.is(Kind::kList)) broken(concat("values are appended to ", list.describe()), "a list");
    list.items.insert(list.items.end(), values.begin(), values.end());
  }
  void set_items(PickleValue& target, const std::vector<PickleValue*>& values) {
    if (!target.is(Kind::kDict) && !target.is(Kind::kObject)) {
      broken(concat("items are set in ", target.describe()), "a dict");
    }
    if (values.size() % 2 != 0) broken("the last key has no value");
    for (size_t i = 0; i < values.size(); i += 2) target.entries.emplace_back(values[i], values[i + 1]);
  }

  bool call(uint8_t code) {
    switch (code) {
      case 'c': {
        const std::string module = line();
        global(module, line());
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = pop(Kind::kString, "the name of a class")->text;
        global(pop(Kind::kString, "the name of a module")->text, name);
        return true;
      }
      case 'R':     // REDUCE
      case 0x81: {  // NEWOBJ
        PickleValue* arguments = pop(Kind::kTuple, "arguments as a tuple");
        const PickleValue* callee = pop(Kind::kGlobal, "a class to make an object of");
        object(callee->text, arguments);
        return true;
      }
      case 'b': {  // BUILD
        PickleValue* state = pop();
        PickleValue& target = top();
        if (target.is(Kind::kObject))
          target.items.at(1) = state;
        else if (!target.is(Kind::kDict))
          broken(concat("state is given to ", target.describe()), "an object");
        return true;
      }
      case 'Q': {  // BINPERSID
        PickleValue* id = pop();
        push(Kind::kPersistent).items = {id};
        return true;
      }
      default:
        return false;
    }
  }
  void global(const std::string& module, const std::string& name) {
    const std::string full = module + '.' + name;
    if (!known_(full)) broken(concat("class ", escape(full)), "classes that hold data");
    push(Kind::kGlobal).text = full;
  }
  void object(const std::string& name, const PickleValue* arguments) {
    if (name == "collections.OrderedDict" && arguments->items.empty()) {
      push(Kind::kDict);
      return;
    }
    const PickleValue* no_state = &make(Kind::kNone);
    PickleValue& made = push(Kind::kObject);
    made.text = name;
    made.items = {arguments, no_state};
  }

  std::span<const std::byte> bytes_;
  const std::function<bool(std::string_view)>& known_;
  const std::string& where_;
  size_t position_ = 0, start_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

Pickle parse_pickle(std::span<const std::byte> bytes, const std::function<bool(std::string_view)>& known,
                    const std::string& where) {
  return PickleReader(bytes, known, where).run();
}

}  // namespace tessera::formats
