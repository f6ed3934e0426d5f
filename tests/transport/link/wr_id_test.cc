// A work request's id holds each of its fields up to the largest value, and no field changes
// another.

#include "verbena/transport/link/ids.h"

#include "gtest/gtest.h"

namespace verbena::internal {
namespace wr_id_test {

TEST(WrIdTest, EveryFieldSurvivesItsLargestValue) {
  const WrId id{WrId::Kind::kSend, 0xfff, 0xffffff, 0xffffff};
  const WrId back = WrId::Unpack(id.Pack());
  EXPECT_EQ(back.kind, WrId::Kind::kSend);
  EXPECT_EQ(back.position, 0xfff);
  EXPECT_EQ(back.generation, 0xffffffu);
  EXPECT_EQ(back.slot, 0xffffffu);
}

TEST(WrIdTest, FieldsDoNotRunIntoEachOther) {
  EXPECT_EQ(WrId::Unpack(WrId{WrId::Kind::kReceive, 0, 0, 0xffffff}.Pack()).generation, 0u);
  EXPECT_EQ(WrId::Unpack(WrId{WrId::Kind::kReceive, 0, 0xffffff, 0}.Pack()).slot, 0u);
  EXPECT_EQ(WrId::Unpack(WrId{WrId::Kind::kReceive, 0, 0xffffff, 0}.Pack()).position, 0u);
  EXPECT_EQ(WrId::Unpack(WrId{WrId::Kind::kReceive, 0xfff, 0, 0}.Pack()).kind,
            WrId::Kind::kReceive);
}

}  // namespace wr_id_test
}  // namespace verbena::internal
