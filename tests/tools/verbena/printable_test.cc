// What a server sends reaches the terminal without control characters.

#include "tools/verbena/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena::command {
namespace printable_test {

TEST(PrintableTest, TextStaysAsItIs) {
  const std::string text = "kv.v1/Get 'Gr\xc3\xbc\xc3\x9f' \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0~";
  EXPECT_EQ(text, Printable(text));
  EXPECT_EQ("", Printable(""));
}

TEST(PrintableTest, ControlCharactersAreEscaped) {
  EXPECT_EQ("a\\u001b[31m\\n\\r\\t\\u007f", Printable("a\x1b[31m\n\r\t\x7f"));
  EXPECT_EQ("\\u0000", Printable(std::string(1, '\0')));
  EXPECT_EQ("\\u0080\\u009b31m\\u009f", Printable("\xc2\x80\xc2\x9b"
                                                  "31m\xc2\x9f"));
}

TEST(PrintableTest, BytesThatAreNoUtf8AreEscaped) {
  EXPECT_EQ("\\x9b", Printable("\x9b"));
  EXPECT_EQ("\\xc0\\x9b overlong", Printable("\xc0\x9b overlong"));
  EXPECT_EQ("\\xe0\\x82\\x9b", Printable("\xe0\x82\x9b"));
  EXPECT_EQ("\\xf0\\x80\\x82\\x9b", Printable("\xf0\x80\x82\x9b"));
  EXPECT_EQ("\\xed\\xa0\\x80 surrogate", Printable("\xed\xa0\x80 surrogate"));
  EXPECT_EQ("\\xf4\\x90\\x80\\x80", Printable("\xf4\x90\x80\x80"));
  EXPECT_EQ("cut \\xe2\\x82", Printable("cut \xe2\x82"));
  EXPECT_EQ("\\xe2\\u001b", Printable("\xe2\x1b"));
}

TEST(PrintableTest, LineBreaksMayStay) {
  EXPECT_EQ("a\n\\r\\u001bb\n", Printable("a\n\r\x1b\x62\n", LineBreaks::kKeep));
}

}  // namespace printable_test
}  // namespace verbena::command
