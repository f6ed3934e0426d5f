// An intrusive list keeps the order of insertion. A member or a list may be destroyed at any time,
// and the others stay linked.

#include "verbena/transport/base/list.h"

#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace verbena::internal {
namespace intrusive_list_test {

struct Item : IntrusiveNode<Item> {
  explicit Item(int value) : value(value) {}
  int value;
};

std::vector<int> Drain(IntrusiveList<Item>& list) {
  std::vector<int> values;
  while (Item* item = list.PopFront()) values.push_back(item->value);
  return values;
}

TEST(IntrusiveListTest, KeepsTheOrderOfInsertion) {
  IntrusiveList<Item> list;
  Item a(1), b(2), c(3);
  list.PushBack(a);
  list.PushBack(b);
  list.PushBack(c);
  EXPECT_EQ(list.Front(), &a);
  EXPECT_EQ(list.Back(), &c);
  EXPECT_EQ(Drain(list), (std::vector{1, 2, 3}));
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.Front(), nullptr);
  EXPECT_EQ(list.Back(), nullptr);
}

TEST(IntrusiveListTest, UnlinkedMemberLeavesItsNeighboursLinked) {
  for (int gone = 0; gone < 3; ++gone) {
    IntrusiveList<Item> list;
    Item items[] = {Item(0), Item(1), Item(2)};
    for (Item& item : items) list.PushBack(item);
    items[gone].Unlink();
    EXPECT_FALSE(items[gone].linked());
    std::vector<int> expected{0, 1, 2};
    expected.erase(expected.begin() + gone);
    EXPECT_EQ(Drain(list), expected);
  }
}

TEST(IntrusiveListTest, DestroyedMemberLeavesTheList) {
  IntrusiveList<Item> list;
  Item first(1);
  std::optional<Item> dying(std::in_place, 2);
  Item last(3);
  list.PushBack(first);
  list.PushBack(*dying);
  list.PushBack(last);
  dying.reset();
  EXPECT_EQ(Drain(list), (std::vector{1, 3}));
}

TEST(IntrusiveListTest, MembersOutliveTheirList) {
  Item item(1);
  {
    IntrusiveList<Item> list;
    list.PushBack(item);
    EXPECT_TRUE(item.linked());
  }
  EXPECT_FALSE(item.linked());
  IntrusiveList<Item> other;
  other.PushBack(item);
  EXPECT_EQ(Drain(other), (std::vector{1}));
}

TEST(IntrusiveListTest, UnlinkTwiceDoesNothing) {
  IntrusiveList<Item> list;
  Item a(1), b(2);
  list.PushBack(a);
  list.PushBack(b);
  a.Unlink();
  a.Unlink();
  EXPECT_EQ(Drain(list), (std::vector{2}));
}

TEST(IntrusiveListTest, PoppedMemberCanBePushedAgain) {
  IntrusiveList<Item> list;
  Item a(1), b(2);
  list.PushBack(a);
  list.PushBack(b);
  list.PushBack(*list.PopFront());
  EXPECT_EQ(Drain(list), (std::vector{2, 1}));
}

TEST(IntrusiveListTest, AppendMovesEverythingToTheEnd) {
  IntrusiveList<Item> list, more, none;
  Item a(1), b(2), c(3), d(4);
  list.PushBack(a);
  more.PushBack(b);
  more.PushBack(c);
  list.Append(more);
  EXPECT_TRUE(more.empty());
  list.Append(none);
  more.PushBack(d);  // the emptied list works on
  b.Unlink();
  EXPECT_EQ(Drain(list), (std::vector{1, 3}));
  EXPECT_EQ(Drain(more), (std::vector{4}));
}

TEST(IntrusiveListTest, AppendToAnEmptyList) {
  IntrusiveList<Item> list, more;
  Item a(1), b(2);
  more.PushBack(a);
  more.PushBack(b);
  list.Append(more);
  EXPECT_EQ(Drain(list), (std::vector{1, 2}));
}

struct Twice;
struct OtherMembership : IntrusiveNode<OtherMembership> {};
struct Twice : IntrusiveNode<Twice>, OtherMembership {};

TEST(IntrusiveListTest, TwoMembershipsOfOneObjectAreIndependent) {
  IntrusiveList<Twice> one;
  IntrusiveList<OtherMembership> other;
  Twice object;
  one.PushBack(object);
  other.PushBack(object);
  object.IntrusiveNode<Twice>::Unlink();
  EXPECT_TRUE(one.empty());
  EXPECT_EQ(other.Front(), &object);
}

}  // namespace intrusive_list_test
}  // namespace verbena::internal
