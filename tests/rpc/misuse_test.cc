// Misuse that the program could have seen aborts the process, and the message says what was wrong.

#include "gtest/gtest.h"
#include "verbena/rpc/call.h"
#include "verbena/rpc/client/landings.h"
#include "verbena/transport/memory/buffer.h"

namespace verbena::internal {
namespace misuse_test {

TEST(MisuseDeathTest, APartThatAPayloadDoesNotHave) {
  EXPECT_DEATH((void)Payload().part(1), "part 1 of 1");
  EXPECT_DEATH((void)Payload::Empty().part(0), "part 0 of 0");
}

TEST(MisuseDeathTest, ASliceBeyondItsBuffer) {
  Payload payload;
  EXPECT_DEATH(payload.Add(Buffer(), {{0, 1}}), "1 bytes at 0 of a Buffer of 0");
  EXPECT_DEATH(payload.Add(Buffer(), {{1, 0}}), "0 bytes at 1 of a Buffer of 0");
}

TEST(MisuseDeathTest, ALandingForAnEmptyPayload) {
  GrantsHeld landings;
  EXPECT_DEATH((void)landings.Take(0), "an empty payload needs no landing");
}

TEST(MisusedPayloadTest, AnEmptyOneIsPresentAndDefaultOnesAreNot) {
  EXPECT_FALSE(Payload().present());
  Payload empty = Payload::Empty();
  EXPECT_TRUE(empty.present());
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.part_count(), 0u);
  EXPECT_FALSE(empty.TakeBuffer());
}

}  // namespace misuse_test
}  // namespace verbena::internal
