// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/pickle.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::formats {
namespace {

using namespace std::string_literals;
using PickleKind = PickleValue::Kind;

bool known(std::string_view name) { return name == "collections.OrderedDict" || name == "a.B"; }

Pickle unpickled(const std::string& text) {
  return parse_pickle(std::as_bytes(std::span(text)), known, "test");
}
std::string pickle_error(const std::string& text) {
  return error_text([&] { unpickled(text); });
}

TEST(Pickle, PlainValues) {
  // (None, True, False, -5, 200, 60000, 2**40, -1, 0, 1.5, "é", b"\x00\x01")
  const auto pickle = unpickled(
      "\x80\x02(N\x88\x89J\xfb\xff\xff\xffK\xc8M\x60\xea\x8a\x06\x00\x00\x00\x00\x00\x01"
      "\x8a\x01\xff\x8a\x00G\x3f\xf8\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00\xc3\xa9"
      "C\x02\x00\x01t."s);
  const auto& items = pickle.root().items;
  ASSERT_EQ(items.size(), 12U);
  EXPECT_TRUE(pickle.root().is(PickleKind::kTuple));
  EXPECT_TRUE(items[0]->is(PickleKind::kNone));
  EXPECT_TRUE(items[1]->flag);
  EXPECT_FALSE(items[2]->flag);
  const std::vector<int64_t> numbers = {-5, 200, 60000, int64_t{1} << 40, -1, 0};
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(items[3 + i]->number, numbers[i]) << i;
  EXPECT_EQ(items[9]->real, 1.5);
  EXPECT_EQ(items[10]->text, "é");
  EXPECT_EQ(items[11]->text, "\x00\x01"s);
}

TEST(Pickle, ContainersAndMemory) {
  // x = [1]; {"a": x, "b": x, "a": (2, 3)} in an OrderedDict
  const auto pickle = unpickled(
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00"
      "a]q\x02K\x01"
      "a"
      "X\x01\x00\x00\x00"
      "bh\x02X\x01\x00\x00\x00"
      "aK\x02K\x03\x86u."s);
  const PickleValue& root = pickle.root();
  ASSERT_TRUE(root.is(PickleKind::kDict));
  EXPECT_EQ(root.entries.size(), 3U);
  EXPECT_EQ(root.entries[0].second, root.find("b")) << "the same list";
  EXPECT_EQ(root.find("b")->items.at(0)->number, 1);
  EXPECT_EQ(root.find("a")->items.at(1)->number, 3) << "the last one of a key wins";
  EXPECT_EQ(root.find("c"), nullptr);
}

TEST(Pickle, ObjectsAreNamesWithArguments) {
  // a.B(7), with state {"x": 1}; protocol 4's way to name it
  for (const auto& named : {"ca\nB\n"s,
                            "\x8c\x01"
                            "a\x8c\x01"
                            "B\x93"s}) {
    const auto pickle = unpickled("\x80\x04" + named + "K\x07\x85R}\x8c\x01xK\x01sb."s);
    const PickleValue& root = pickle.root();
    ASSERT_TRUE(root.is(PickleKind::kObject));
    EXPECT_EQ(root.describe(), "an object of a.B");
    EXPECT_EQ(root.items.at(0)->items.at(0)->number, 7);
    EXPECT_EQ(root.items.at(1)->find("x")->number, 1);
  }
}

TEST(Pickle, AListThatHoldsItselfIsRead) {
  const auto pickle = unpickled(
      "\x80\x02]q\x00h\x00"
      "a."s);
  EXPECT_EQ(pickle.root().items.at(0), &pickle.root());
}

TEST(Pickle, WhatIsNoDataIsNamed) {
  EXPECT_EQ(pickle_error("\x80\x02"
                         "cos\nsystem\nX\x02\x00\x00\x00ls\x85R."s),
            "[formats.pickle] bad pickle: class os.system (test, byte 2 of the pickle): expected classes "
            "that hold data");
  EXPECT_EQ(pickle_error("\x80\x02(K\x01io\nx\n."s),
            "[formats.pickle] bad pickle: operation 0x69 (test, byte 5 of the pickle): expected operations "
            "that hold data");
  EXPECT_EQ(
      pickle_error("\x80\x06."s),
      "[formats.pickle] bad pickle: protocol 6 (test, byte 0 of the pickle): expected protocol 5 or older");
  EXPECT_EQ(pickle_error("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s),
            "[formats.pickle] bad pickle: a whole number of 9 bytes (test, byte 0 of the pickle): expected "
            "at most 64 bits");
  EXPECT_EQ(
      pickle_error("K\x01K\x02R."s),
      "[formats.pickle] bad pickle: an integer (test, byte 4 of the pickle): expected arguments as a tuple");
  EXPECT_EQ(pickle_error("K\x01)R."s),
            "[formats.pickle] bad pickle: an integer (test, byte 3 of the pickle): expected a class to make "
            "an object of");
}

TEST(Pickle, BrokenOnes) {
  EXPECT_EQ(pickle_error(""), "[formats.pickle] bad pickle: it is cut off (test, byte 0 of the pickle)");
  EXPECT_EQ(
      pickle_error("."),
      "[formats.pickle] bad pickle: the stack does not end with one value (test, byte 0 of the pickle)");
  EXPECT_EQ(
      pickle_error("NN."),
      "[formats.pickle] bad pickle: the stack does not end with one value (test, byte 2 of the pickle)");
  EXPECT_EQ(
      pickle_error("(N."),
      "[formats.pickle] bad pickle: the stack does not end with one value (test, byte 2 of the pickle)");
  EXPECT_EQ(pickle_error("0"),
            "[formats.pickle] bad pickle: no value is on the stack (test, byte 0 of the pickle)");
  EXPECT_EQ(pickle_error("N(0"),
            "[formats.pickle] bad pickle: no value is on the stack (test, byte 2 of the pickle)");
  EXPECT_EQ(pickle_error("e"),
            "[formats.pickle] bad pickle: no mark is on the stack (test, byte 0 of the pickle)");
  EXPECT_EQ(pickle_error("h\x05"),
            "[formats.pickle] bad pickle: no value is remembered as 5 (test, byte 0 of the pickle)");
  EXPECT_EQ(pickle_error("N(Ne"),
            "[formats.pickle] bad pickle: values are appended to None (test, byte 3 of the pickle): expected "
            "a list");
  EXPECT_EQ(
      pickle_error("]NNs"),
      "[formats.pickle] bad pickle: items are set in a list (test, byte 3 of the pickle): expected a dict");
  EXPECT_EQ(pickle_error("}(Nu"),
            "[formats.pickle] bad pickle: the last key has no value (test, byte 3 of the pickle)");
  EXPECT_EQ(
      pickle_error("N}b"),
      "[formats.pickle] bad pickle: state is given to None (test, byte 2 of the pickle): expected an object");
  EXPECT_EQ(pickle_error("X\xff\xff\xff\x7f"
                         "a"),
            "[formats.pickle] bad pickle: it is cut off (test, byte 0 of the pickle)");
  EXPECT_EQ(pickle_error("ca\nB"), "[formats.pickle] bad pickle: it is cut off (test, byte 0 of the pickle)");
}

}  // namespace
}  // namespace tessera::formats
