// Numbers, sizes and counts are printed as people read them. Progress redraws its line on a
// terminal only.

#include "examples/common/amounts.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "examples/common/progress.h"
#include "gtest/gtest.h"

namespace examples {
namespace amounts_test {

TEST(AmountsTest, NumbersAreGroupedByThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
}

TEST(AmountsTest, SizesHaveTheUnitThatKeepsThemShort) {
  EXPECT_EQ(Sized(999), "999 bytes");
  EXPECT_EQ(Sized(1000), "1.0 kB");
  EXPECT_EQ(Sized(999949), "999.9 kB");
  EXPECT_EQ(Sized(999950), "1.0 MB");
  EXPECT_EQ(Sized(1234567890123456), "1234.6 TB");
}

TEST(AmountsTest, OneIsNotPlural) {
  EXPECT_EQ(Counted(0, "file"), "0 files");
  EXPECT_EQ(Counted(1, "file"), "1 file");
  EXPECT_EQ(Counted(1000, "file"), "1,000 files");
}

std::string Drawn(bool redraws) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  Progress progress(stream, redraws);
  progress.Update("one");
  progress.Finish("two");
  std::fclose(stream);
  std::string drawn(text, size);
  std::free(text);
  return drawn;
}

TEST(ProgressTest, OnlyATerminalIsRedrawn) {
  EXPECT_EQ(Drawn(false), "one\ntwo\n");
  EXPECT_EQ(Drawn(true), "\r\x1b[Kone\r\x1b[Ktwo\n");
}

}  // namespace amounts_test
}  // namespace examples
