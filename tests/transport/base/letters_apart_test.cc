// Words are as many letters apart as one must insert, take out or change.

#include "verbena/transport/base/letters_apart.h"

#include <gtest/gtest.h>

namespace verbena::internal {
namespace {

TEST(LettersApartTest, CountsInsertedMissingAndChangedLetters) {
  EXPECT_EQ(LettersApart("link", "link"), 0u);
  EXPECT_EQ(LettersApart("lnk", "link"), 1u);
  EXPECT_EQ(LettersApart("linnk", "link"), 1u);
  EXPECT_EQ(LettersApart("lank", "link"), 1u);
  EXPECT_EQ(LettersApart("kitten", "sitting"), 3u);
  EXPECT_EQ(LettersApart("inof", "info"), 2u);
}

TEST(LettersApartTest, AnEmptyWordIsAsFarAsTheOtherIsLong) {
  EXPECT_EQ(LettersApart("", "link"), 4u);
  EXPECT_EQ(LettersApart("link", ""), 4u);
  EXPECT_EQ(LettersApart("", ""), 0u);
}

}  // namespace
}  // namespace verbena::internal
