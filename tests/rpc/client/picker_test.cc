// A picker takes members as its policy says: in turns, by weight, by load, or by key.

#include "verbena/rpc/client/picker.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace verbena::internal {
namespace picker_test {

using Member = Picker::Member;

std::map<uint32_t, int> Count(Picker& picker, int picks) {
  std::map<uint32_t, int> counts;
  for (int i = 0; i < picks; ++i) ++counts[picker.Pick({})];
  return counts;
}

std::vector<Member> Members(uint32_t count) {
  std::vector<Member> members;
  for (uint32_t id = 0; id < count; ++id) {
    members.push_back({.id = id, .hash = StableHash("server-" + std::to_string(id))});
  }
  return members;
}

TEST(PickerTest, TakesTurns) {
  Picker picker(Balancing::kRoundRobin, 1);
  picker.Set(Members(3));
  EXPECT_EQ(Count(picker, 9), (std::map<uint32_t, int>{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(PickerTest, DifferentSeedsBeginAtDifferentMembers) {
  std::map<uint32_t, int> first;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Picker picker(Balancing::kRoundRobin, seed);
    picker.Set(Members(4));
    ++first[picker.Pick({})];
  }
  EXPECT_EQ(first.size(), 4u);
}

TEST(PickerTest, SpreadsTheTurnsOfAWeightEvenly) {
  Picker picker(Balancing::kWeighted, 1);
  picker.Set({{.id = 5, .weight = 300}, {.id = 6, .weight = 100}});
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(Count(picker, 4), (std::map<uint32_t, int>{{5, 3}, {6, 1}})) << round;
  }
}

TEST(PickerTest, BoundsTheTurnsOfManyDifferentWeights) {
  std::vector<Member> members = Members(1000);
  for (Member& each : members) each.weight = 1000 - each.id % 997;
  Picker picker(Balancing::kWeighted, 1);
  picker.Set(members);
  const std::map<uint32_t, int> counts = Count(picker, 8000);
  EXPECT_EQ(counts.size(), 1000u) << "each member has a turn";
  EXPECT_GT(counts.at(0), counts.at(996));
}

TEST(PickerTest, TakesTheLessLoadedOfTwoByWeight) {
  Picker picker(Balancing::kLeastInFlight, 1);
  uint32_t heavy = 0;
  const uint32_t light = 1;
  picker.Set(
      {{.id = 0, .weight = 4, .in_flight = &heavy}, {.id = 1, .weight = 1, .in_flight = &light}});
  for (int i = 0; i < 20; ++i) {
    heavy = 6;
    EXPECT_EQ(picker.Pick({}), 0u) << "7/4 and 2/1";
    heavy = 8;
    EXPECT_EQ(picker.Pick({}), 1u) << "9/4 and 2/1";
  }
}

TEST(PickerTest, NeverComparesAMemberWithItself) {
  Picker picker(Balancing::kLeastInFlight, 3);
  const uint32_t idle = 0;
  const uint32_t busy = 9;
  std::vector<Member> members = Members(5);
  for (Member& each : members) each.in_flight = each.id == 2 ? &busy : &idle;
  picker.Set(members);
  // One of two different members is not the loaded one.
  for (int i = 0; i < 500; ++i) EXPECT_NE(picker.Pick({}), 2u);
}

TEST(PickerTest, TakesAnOnlyMemberHoweverLoaded) {
  Picker picker(Balancing::kLeastInFlight, 5);
  const uint32_t busy = 9;
  picker.Set({{.id = 7, .weight = 2, .in_flight = &busy}});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(picker.Pick({}), 7u);
}

TEST(PickerTest, StaysWithTheMemberOfAKeyAndTakesTurnsWithoutOne) {
  Picker picker(Balancing::kRouteKey, 1);
  picker.Set(Members(3));
  for (uint64_t key : {0, 1, 2}) {
    const uint32_t its_own = picker.Pick(key);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(picker.Pick(key), its_own) << key;
  }
  EXPECT_EQ(Count(picker, 9), (std::map<uint32_t, int>{{0, 3}, {1, 3}, {2, 3}}));
}

std::vector<RouteTable::Member> Owners(uint32_t count) {
  std::vector<RouteTable::Member> owners;
  for (const Member& each : Members(count)) owners.push_back({each.id, each.hash, each.weight});
  return owners;
}

TEST(RouteTableTest, MovesOnlyTheKeysOfAMemberThatGoesOrComes) {
  RouteTable table;
  const std::vector<RouteTable::Member> all = Owners(10);
  table.Set(all);
  std::vector<uint32_t> before;
  for (uint64_t key = 1; key <= 10000; ++key) before.push_back(table.Of(key));
  std::vector<RouteTable::Member> fewer = all;
  fewer.erase(fewer.begin() + 4);
  table.Set(fewer);
  for (uint64_t key = 1; key <= 10000; ++key) {
    const uint32_t now = table.Of(key);
    if (before[key - 1] == 4) {
      EXPECT_NE(now, 4u);
    } else {
      EXPECT_EQ(now, before[key - 1]);
    }
  }
  table.Set(all);
  for (uint64_t key = 1; key <= 10000; ++key) EXPECT_EQ(table.Of(key), before[key - 1]);
}

// However each came to its set, and in whichever order it lists it.
TEST(RouteTableTest, AgreesWithEveryOtherTableOfTheSameSet) {
  const std::vector<RouteTable::Member> all = Owners(7);
  RouteTable one;
  one.Set(all);
  RouteTable other;
  other.Set({all[3]});
  other.Set({all[6], all[3], all[1]});
  other.Set({all[6], all[5], all[4], all[3], all[2], all[1], all[0]});
  for (uint64_t key = 1; key <= 1000; ++key) EXPECT_EQ(one.Of(key), other.Of(key)) << key;
}

// The inverse of MixBits(): whoever chooses a server's name may choose what it hashes to.
uint64_t UnmixBits(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089;
  return x ^ (x >> 30) ^ (x >> 60);
}

TEST(RouteTableTest, EachSlotBelongsToAMemberWhateverTheHashesAre) {
  constexpr uint64_t kOdd = 0x123456789abcdef;
  ASSERT_EQ(UnmixBits(MixBits(kOdd)), kOdd);
  for (const size_t slot : {size_t{0}, size_t{17}, RouteTable::kSlots - 1}) {
    const uint64_t key = UnmixBits(slot);
    for (const uint64_t mixed : {~uint64_t{0}, uint64_t{0}}) {
      const RouteTable::Member crafted{.id = 5, .hash = UnmixBits(mixed) ^ MixBits(slot + 1)};
      RouteTable table;
      table.Set({{.id = 7, .hash = StableHash("gone")}});
      table.Set({crafted});
      EXPECT_EQ(table.Of(key), 5u) << slot;
    }
  }
}

TEST(RouteTableTest, GivesKeysInProportionToWeights) {
  std::vector<RouteTable::Member> members = Owners(4);
  members[0].weight = 3;
  RouteTable table;
  table.Set(members);
  std::vector<int> keys(4);
  for (uint64_t key = 1; key <= 60000; ++key) ++keys[table.Of(key)];
  EXPECT_NEAR(keys[0], 30000, 2500);
  for (int i : {1, 2, 3}) EXPECT_NEAR(keys[i], 10000, 1500);
}

TEST(RouteTableTest, AnIdThatIsUsedAgainGetsTheNewMembersKeys) {
  const std::vector<RouteTable::Member> all = Owners(4);
  RouteTable reused;
  reused.Set({all[0], all[1]});
  RouteTable::Member in_place_of_1 = all[2];
  in_place_of_1.id = 1;
  reused.Set({all[0], in_place_of_1});
  RouteTable fresh;
  fresh.Set({all[0], in_place_of_1});
  for (uint64_t key = 1; key <= 1000; ++key) EXPECT_EQ(reused.Of(key), fresh.Of(key)) << key;
}

}  // namespace picker_test
}  // namespace verbena::internal
