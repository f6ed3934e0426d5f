// A profile's text is read line by line, and each mistake in it is told with its file, its line,
// the value, and what is allowed there. VERBENA_SOFT_PROFILE names the profile of devices that were
// given none.

#include "verbena/transport/soft/options.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/soft/soft_device.h"

namespace verbena::internal {
namespace soft_profile_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<SoftProfile> Parse(const std::string& text) {
  return SoftProfile::Parse(text, "some.profile");
}

std::string WrongIn(const std::string& text) {
  const absl::Status status = Parse(text).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(SoftProfileTest, AnEmptyTextWithholdsNothing) {
  for (const char* text : {"", "\n", "# nothing\n\n   # at all"}) {
    absl::StatusOr<SoftProfile> profile = Parse(text);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_TRUE(profile->srq);
    EXPECT_TRUE(profile->memory_windows);
    EXPECT_EQ(profile->max_inline_bytes, 8192u);
    EXPECT_EQ(profile->mtu, 4096u);
  }
}

TEST(SoftProfileTest, ReadsEachKey) {
  absl::StatusOr<SoftProfile> profile = Parse(
      "reliable_connections = false\nsrq = false\nsrq_limit_event=false\r\n  last_wqe_event = "
      "false # as it says\n"
      "send_with_immediate = false\nwrite_with_immediate = false\natomics = false\n"
      "memory_windows = false\nflushes_in_error = false\nmax_inline_bytes = 0\nmax_sge = 1\nmax_qp "
      "= 5\nmax_qp_wr = 6\n"
      "max_cqe = 7\nmax_srq_wr = 8\nmax_qp_rd_atom = 1\nmax_qp_init_rd_atom = 2\nmtu = 256");
  ASSERT_TRUE(profile.ok()) << profile.status();
  for (const bool has :
       {profile->reliable_connections, profile->srq, profile->srq_limit_event,
        profile->last_wqe_event, profile->send_with_immediate, profile->write_with_immediate,
        profile->atomics, profile->memory_windows, profile->flushes_in_error}) {
    EXPECT_FALSE(has);
  }
  EXPECT_EQ(profile->max_inline_bytes, 0u);
  EXPECT_EQ(profile->max_sge, 1u);
  EXPECT_EQ(profile->max_qp, 5u);
  EXPECT_EQ(profile->max_qp_wr, 6u);
  EXPECT_EQ(profile->max_cqe, 7u);
  EXPECT_EQ(profile->max_srq_wr, 8u);
  EXPECT_EQ(profile->max_qp_rd_atom, 1u);
  EXPECT_EQ(profile->max_qp_init_rd_atom, 2u);
  EXPECT_EQ(profile->mtu, 256u);
}

TEST(SoftProfileTest, TellsTheLineTheValueAndWhatIsAllowed) {
  EXPECT_THAT(WrongIn("srq = true\n\nmax_sge = 17\n"),
              AllOf(HasSubstr("some.profile, line 3"), HasSubstr("max_sge is \"17\""),
                    HasSubstr("from 1 to 16")));
  EXPECT_THAT(WrongIn("mtu = 1500"), AllOf(HasSubstr("line 1"), HasSubstr("\"1500\""),
                                           HasSubstr("256, 512, 1024, 2048 or 4096")));
  EXPECT_THAT(WrongIn("atomics = yes"), AllOf(HasSubstr("\"yes\""), HasSubstr("true or false")));
}

TEST(SoftProfileTest, RefusesWhatIsNoNumber) {
  for (const char* value : {"", "-1", "1k", "0x10", "99999999999", "1 2"}) {
    EXPECT_THAT(WrongIn(std::string("max_cqe = ") + value),
                HasSubstr("max_cqe is \"" + std::string(value) + "\""));
  }
}

TEST(SoftProfileTest, RefusesKeysThatDoNotExistOrComeTwice) {
  EXPECT_THAT(WrongIn("srqs = true"),
              AllOf(HasSubstr("\"srqs\""), HasSubstr("srq, srq_limit_event"), HasSubstr(", mtu")));
  EXPECT_THAT(WrongIn("srq = true\nsrq = false"),
              AllOf(HasSubstr("line 2"), HasSubstr("a second time")));
  EXPECT_THAT(WrongIn("srq"), HasSubstr("\"srq\" is not of the form key = value"));
}

TEST(SoftProfileTest, AStructOutOfRangeIsRefusedByName) {
  SoftProfile profile;
  profile.max_qp_rd_atom = 17;
  const absl::Status refused = SoftDevice::Create({.profile = profile}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("max_qp_rd_atom is 17"), HasSubstr("from 0 to 16")));
}

class ProfileInEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* set = std::getenv("VERBENA_SOFT_PROFILE")) before_ = set;
    std::ofstream(path_) << "srq = false\nmtu = 512\n";
    setenv("VERBENA_SOFT_PROFILE", path_.c_str(), 1);
  }
  void TearDown() override { setenv("VERBENA_SOFT_PROFILE", before_.c_str(), 1); }

  const std::string path_ = testing::TempDir() + "/environment.profile";
  std::string before_;
};

TEST_F(ProfileInEnvironmentTest, IsThatOfDevicesThatAreGivenNone) {
  std::unique_ptr<SoftDevice> device = *SoftDevice::Create({.engine_thread = false});
  EXPECT_FALSE(device->capabilities().srq);
  EXPECT_EQ(device->QueryPort(1)->active_mtu, IBV_MTU_512);
  device = *SoftDevice::Create({.engine_thread = false, .profile = SoftProfile{}});
  EXPECT_TRUE(device->capabilities().srq);
  EXPECT_EQ(device->QueryPort(1)->active_mtu, IBV_MTU_4096);
}

TEST_F(ProfileInEnvironmentTest, AMissingOrWrongFileLetsNoDeviceBegin) {
  setenv("VERBENA_SOFT_PROFILE", "/nowhere/at.all", 1);
  absl::Status refused = SoftDevice::Create({.engine_thread = false}).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("VERBENA_SOFT_PROFILE: reading soft device profile /nowhere/at.all"));
  setenv("VERBENA_SOFT_PROFILE", testing::TempDir().c_str(), 1);
  refused = SoftDevice::Create({.engine_thread = false}).status();
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr(testing::TempDir()));
  std::ofstream(path_) << "srq = perhaps\n";
  setenv("VERBENA_SOFT_PROFILE", path_.c_str(), 1);
  refused = SoftDevice::Create({.engine_thread = false}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path_ + ", line 1"));
}

TEST_F(ProfileInEnvironmentTest, EmptyWithholdsNothing) {
  setenv("VERBENA_SOFT_PROFILE", "", 1);
  const absl::StatusOr<SoftProfile> profile = SoftProfile::FromEnvironment();
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->srq);
  std::ofstream(path_) << "";
  const absl::StatusOr<SoftProfile> of_empty_file = SoftProfile::Load(path_);
  ASSERT_TRUE(of_empty_file.ok()) << of_empty_file.status();
  EXPECT_TRUE(of_empty_file->srq);
}

}  // namespace soft_profile_test
}  // namespace verbena::internal
