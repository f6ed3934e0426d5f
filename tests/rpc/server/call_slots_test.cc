// A link's table of call slots takes memory for calls that run, and gives it back.

#include "verbena/rpc/server/call_link.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace verbena::internal {
namespace call_slots_test {

// The table never looks into a call.
// NOLINTNEXTLINE(performance-no-int-to-ptr)
ServerCall& Call(uintptr_t number) { return *reinterpret_cast<ServerCall*>(8 * (number + 1)); }

constexpr uint32_t kLast = kMaxCallsInFlight - 1;

TEST(CallSlotsTest, LookingForACallTakesNoMemory) {
  CallSlots slots;
  for (const uint32_t slot : {0u, 255u, 256u, kLast, kMaxCallsInFlight, UINT32_MAX}) {
    EXPECT_EQ(slots.Find(slot), nullptr) << slot;
  }
  EXPECT_EQ(slots.pages(), 0u);
}

TEST(CallSlotsTest, FindsTheCallOfEachSlot) {
  CallSlots slots;
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; slot += 17) slots.Add(slot, Call(slot));
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; ++slot) {
    ASSERT_EQ(slots.Find(slot), slot % 17 == 0 ? &Call(slot) : nullptr) << slot;
  }
  EXPECT_EQ(slots.Find(kMaxCallsInFlight), nullptr);
  EXPECT_EQ(slots.pages(), CallSlots::kMaxPages);
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; slot += 17) {
    slots.Remove(slot, Call(slot));
    ASSERT_EQ(slots.Find(slot), nullptr) << slot;
  }
}

TEST(CallSlotsTest, AHighSlotTakesOnePage) {
  CallSlots slots;
  slots.Add(kLast, Call(1));
  EXPECT_EQ(slots.pages(), 1u);
  EXPECT_EQ(slots.Find(kLast), &Call(1));
  EXPECT_EQ(slots.Find(0), nullptr);
  slots.Remove(kLast, Call(1));
}

// A client may have a call in each page, one after another or all at once.
TEST(CallSlotsTest, APageWhoseLastCallHasEndedIsFreed) {
  CallSlots slots;
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; slot += CallSlots::kPageSlots) {
    slots.Add(slot, Call(slot));
    slots.Remove(slot, Call(slot));
    EXPECT_LE(slots.pages(), 2u);
  }
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; slot += CallSlots::kPageSlots) {
    slots.Add(slot, Call(slot));
  }
  EXPECT_EQ(slots.pages(), CallSlots::kMaxPages);
  for (uint32_t slot = 0; slot < kMaxCallsInFlight; slot += CallSlots::kPageSlots) {
    slots.Remove(slot, Call(slot));
  }
  EXPECT_EQ(slots.pages(), 2u) << "the first, and a spare";
}

// A call that was cancelled may still run when its slot is used again.
TEST(CallSlotsTest, APageStaysWhileACallRunsWhoseSlotHasALaterOne) {
  CallSlots slots;
  slots.Add(300, Call(1));
  slots.Add(300, Call(2));
  EXPECT_EQ(slots.Find(300), &Call(2));
  slots.Remove(300, Call(2));
  EXPECT_EQ(slots.Find(300), nullptr);
  slots.Add(300, Call(3));
  slots.Remove(300, Call(1));
  EXPECT_EQ(slots.Find(300), &Call(3));
  slots.Remove(300, Call(3));
  EXPECT_EQ(slots.Find(300), nullptr);
}

}  // namespace call_slots_test
}  // namespace verbena::internal
