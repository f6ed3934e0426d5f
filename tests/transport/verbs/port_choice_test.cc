// A port is found by device, interface or address. A name that fits no usable port is refused with
// a list of those that exist, or with the command that brings the port up.

#include "verbena/transport/verbs/port.h"

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/verbs/ports.h"

namespace verbena::internal {
namespace port_choice_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<PortInfo> Host() {
  return {InfiniBandPort("mlx5_0", 1), InfiniBandPort("mlx5_0", 2),
          RocePort("rxe0", "eth0", {"10.0.0.1"}), RocePort("rxe1", "eth1", {"fd00::1"})};
}

// "device:port:gid", or the code and message of the error.
std::string Chosen(const std::vector<PortInfo>& ports, const std::string& name) {
  absl::StatusOr<PortChoice> choice = ChoosePort(ports, name);
  if (!choice.ok()) return choice.status().ToString();
  return fmt::format("{}:{}:{}", choice->device, choice->port, choice->gid_index);
}

TEST(PortChoiceTest, APortIsFoundByDeviceInterfaceAndAddress) {
  EXPECT_EQ(Chosen(Host(), "rxe0"), "rxe0:1:1");
  EXPECT_EQ(Chosen(Host(), "eth1"), "rxe1:1:1");
  EXPECT_EQ(Chosen(Host(), "10.0.0.1"), "rxe0:1:1");
  EXPECT_EQ(Chosen(Host(), "fd00::1"), "rxe1:1:1");
}

TEST(PortChoiceTest, PortAndGidCanBeNamed) {
  EXPECT_EQ(Chosen(Host(), "mlx5_0:2"), "mlx5_0:2:0");
  EXPECT_EQ(Chosen(Host(), "rxe0:1:0"), "rxe0:1:0");
}

TEST(PortChoiceTest, TheChoiceSaysWhichRoceItIsSinceTheVersionsDoNotTalkToEachOther) {
  EXPECT_TRUE(ChoosePort(Host(), "rxe0:1:0")->roce_v1);
  EXPECT_FALSE(ChoosePort(Host(), "rxe0")->roce_v1);
  EXPECT_FALSE(ChoosePort(Host(), "mlx5_0")->roce_v1);
}

TEST(PortChoiceTest, OtherGidsOfThePortMayServeIfTheNameAndTheVersionAdmitThem) {
  PortInfo port = RocePort("rxe0", "eth0", {"10.0.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1"});
  port.gids[2].netdev = port.gids[3].netdev = "eth0.100";
  port.gids[5].other_namespace = true;
  port.gids[7].index = 256;
  EXPECT_THAT(ChoosePort({port}, "")->alike, ElementsAre(3)) << "v2, of any interface";
  EXPECT_THAT(ChoosePort({port}, "rxe0:1:0")->alike, IsEmpty()) << "one was named";
  EXPECT_THAT(ChoosePort({port}, "10.0.0.1")->alike, IsEmpty());
  EXPECT_THAT(ChoosePort({port}, "eth0.100")->alike, IsEmpty()) << "of that interface alone";
  port.gids[5].other_namespace = false;
  EXPECT_THAT(ChoosePort({port}, "eth0")->alike, ElementsAre(5));
}

TEST(PortChoiceTest, WithoutAPortTheFirstActiveOneOfTheDeviceIsTaken) {
  std::vector<PortInfo> ports = Host();
  EXPECT_EQ(Chosen(ports, "mlx5_0"), "mlx5_0:1:0");
  ports[0].active = false;
  EXPECT_EQ(Chosen(ports, "mlx5_0"), "mlx5_0:2:0");
}

TEST(PortChoiceTest, WithoutANameTheFirstActivePortIsTakenAndIwarpLast) {
  std::vector<PortInfo> ports = Host();
  ports[0].link = ports[1].link = PortLink::kIwarp;
  EXPECT_EQ(Chosen(ports, ""), "rxe0:1:1");
  ports[2].active = ports[3].active = false;
  EXPECT_EQ(Chosen(ports, ""), "mlx5_0:1:0");
}

TEST(PortChoiceTest, AnUnknownNameListsWhatTheHostHas) {
  for (const char* name : {"mlx5_9", "eth7", "10.0.0.9", "mlx5_9:1", "rxe0:x", "rxe0:1:"}) {
    EXPECT_THAT(
        Chosen(Host(), name),
        AllOf(HasSubstr("NOT_FOUND"), HasSubstr(fmt::format("\"{}\"", name)),
              HasSubstr("mlx5_0 port 2 (active"), HasSubstr("rxe0 port 1 (active eth0 10.0.0.1")));
  }
  EXPECT_THAT(Chosen({}, "mlx5_0"), HasSubstr("this host has: none"));
}

TEST(PortChoiceTest, APortThatIsDownNamesTheCommandThatBringsItUp) {
  std::vector<PortInfo> ports = Host();
  ports[2].active = false;
  for (const char* name : {"rxe0", "rxe0:1", "eth0", "10.0.0.1"}) {
    EXPECT_THAT(Chosen(ports, name),
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("port 1 of rxe0 is not active"),
                      HasSubstr("ip link set dev eth0 up")))
        << name;
  }
}

TEST(PortChoiceTest, APortOrGidThatTheDeviceLacksIsRefused) {
  EXPECT_THAT(Chosen(Host(), "mlx5_0:3"), HasSubstr("NOT_FOUND"));
  EXPECT_THAT(Chosen(Host(), "rxe0:1:9"), AllOf(HasSubstr("OUT_OF_RANGE"), HasSubstr("index 9")));
}

}  // namespace port_choice_test
}  // namespace verbena::internal
