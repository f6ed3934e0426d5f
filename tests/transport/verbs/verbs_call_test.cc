// Each way in which verbs report failure yields the right errno. A registration that exceeds
// RLIMIT_MEMLOCK names the limit and the bytes needed; other failures do not.

#include "verbena/transport/verbs/rdma_device.h"

#include <cerrno>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace verbena::internal {
namespace verbs_call_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(VerbsCallTest, EachConventionOfFailureYieldsItsErrno) {
  EXPECT_EQ(ErrorOfResult(EBUSY, EAGAIN), EBUSY) << "a positive result is the errno itself";
  EXPECT_EQ(ErrorOfResult(-1, EAGAIN), EAGAIN) << "-1 refers to errno";
  EXPECT_EQ(ErrorOfResult(-ENOSYS, EAGAIN), ENOSYS) << "a negative errno";
}

TEST(VerbsCallTest, AFailureThatGivesNoErrnoIsStillAnError) {
  EXPECT_EQ(ErrorOfResult(-1, 0), EIO);
}

TEST(VerbsCallTest, RegistrationOverTheLimitNamesItAndTheBytesNeeded) {
  const absl::Status status = RegistrationStatus(ENOMEM, "ibv_reg_mr on mlx5_0", /*bytes=*/1000000,
                                                 /*memlock_limit=*/65536, /*pinned_bytes=*/24);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("ibv_reg_mr on mlx5_0"), HasSubstr("ENOMEM"),
                    HasSubstr("RLIMIT_MEMLOCK is 65536 bytes"), HasSubstr("1000024 are needed")));
}

TEST(VerbsCallTest, RegistrationThatFailsForAnotherReasonDoesNotBlameTheLimit) {
  EXPECT_THAT(MessageOf(RegistrationStatus(EFAULT, "ibv_reg_mr", 4096, 65536, 0)),
              Not(HasSubstr("RLIMIT_MEMLOCK")));
  EXPECT_THAT(MessageOf(RegistrationStatus(ENOMEM, "ibv_reg_mr", 4096, RLIM_INFINITY, 0)),
              Not(HasSubstr("RLIMIT_MEMLOCK")));
}

}  // namespace verbs_call_test
}  // namespace verbena::internal
