// Every completion status and errno becomes a Status whose code tells our own faults from the
// peer's and the wire's, and whose message names the constant, the queue pair and the peer.

#include "verbena/transport/device/verbs_status.h"

#include <infiniband/verbs.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verbena/transport/device/device.h"

namespace verbena::internal {
namespace verbs_status_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StrEq;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

struct NamedStatus {
  ibv_wc_status status;
  const char* name;
};
#define NAMED(constant) \
  NamedStatus { constant, #constant }
constexpr NamedStatus kStatuses[] = {
    NAMED(IBV_WC_SUCCESS),
    NAMED(IBV_WC_LOC_LEN_ERR),
    NAMED(IBV_WC_LOC_QP_OP_ERR),
    NAMED(IBV_WC_LOC_EEC_OP_ERR),
    NAMED(IBV_WC_LOC_PROT_ERR),
    NAMED(IBV_WC_WR_FLUSH_ERR),
    NAMED(IBV_WC_MW_BIND_ERR),
    NAMED(IBV_WC_BAD_RESP_ERR),
    NAMED(IBV_WC_LOC_ACCESS_ERR),
    NAMED(IBV_WC_REM_INV_REQ_ERR),
    NAMED(IBV_WC_REM_ACCESS_ERR),
    NAMED(IBV_WC_REM_OP_ERR),
    NAMED(IBV_WC_RETRY_EXC_ERR),
    NAMED(IBV_WC_RNR_RETRY_EXC_ERR),
    NAMED(IBV_WC_LOC_RDD_VIOL_ERR),
    NAMED(IBV_WC_REM_INV_RD_REQ_ERR),
    NAMED(IBV_WC_REM_ABORT_ERR),
    NAMED(IBV_WC_INV_EECN_ERR),
    NAMED(IBV_WC_INV_EEC_STATE_ERR),
    NAMED(IBV_WC_FATAL_ERR),
    NAMED(IBV_WC_RESP_TIMEOUT_ERR),
    NAMED(IBV_WC_GENERAL_ERR),
    NAMED(IBV_WC_TM_ERR),
    NAMED(IBV_WC_TM_RNDV_INCOMPLETE),
};
#undef NAMED

// The largest value that C++ lets an enum of these enumerators hold: 5 bits.
constexpr auto kBeyondTheEnum = static_cast<ibv_wc_status>(31);

TEST(WcStatusTest, EveryStatusCarriesTheNameOfItsConstant) {
  for (const NamedStatus& named : kStatuses)
    EXPECT_THAT(WcStatusName(named.status), StrEq(named.name));
}

TEST(WcStatusTest, NoStatusThatTheLibraryKnowsIsMissingHere) {
  const std::string unknown = ibv_wc_status_str(kBeyondTheEnum);
  for (int value = 0; value <= kBeyondTheEnum; ++value) {
    const auto status = static_cast<ibv_wc_status>(value);
    const bool known_to_library = ibv_wc_status_str(status) != unknown;
    const bool known_here = std::string(WcStatusName(status)).starts_with("IBV_WC_");
    EXPECT_EQ(known_here, known_to_library) << "status " << value;
  }
}

TEST(WcStatusTest, AStatusFromBeyondTheEnumIsNamedAndDoesNotReadPastTheTable) {
  EXPECT_THAT(WcStatusName(static_cast<ibv_wc_status>(24)), StrEq("unknown IBV_WC status"));
  EXPECT_THAT(WcStatusName(kBeyondTheEnum), StrEq("unknown IBV_WC status"));
}

TEST(WcStatusTest, SuccessAloneIsOk) {
  for (const NamedStatus& named : kStatuses) {
    ibv_wc completion{};
    completion.status = named.status;
    EXPECT_EQ(WcStatus(completion, "peer").ok(), named.status == IBV_WC_SUCCESS) << named.name;
  }
}

TEST(WcStatusTest, AFailureNamesConstantQpnPeerAndVendorError) {
  ibv_wc completion{};
  completion.status = IBV_WC_RNR_RETRY_EXC_ERR;
  completion.qp_num = 0xabc;
  completion.vendor_err = 0x15;
  const absl::Status status = WcStatus(completion, "10.0.0.7");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("IBV_WC_RNR_RETRY_EXC_ERR"), HasSubstr("0xabc"),
                                       HasSubstr("10.0.0.7"), HasSubstr("0x15")));
}

TEST(WcStatusTest, UsersAreToldInWordsWithTheSameCodeAndWithoutAConstant) {
  for (const NamedStatus& named : kStatuses) {
    ibv_wc completion{};
    completion.status = named.status;
    const absl::Status told = EndOfConnection(completion, "10.0.0.7");
    EXPECT_EQ(told.code(), WcStatus(completion, "10.0.0.7").code()) << named.name;
    if (told.ok()) continue;
    EXPECT_THAT(MessageOf(told), AllOf(HasSubstr("10.0.0.7"), Not(HasSubstr("IBV_"))))
        << named.name;
  }
}

TEST(WcStatusTest, ADeadPeerIsCalledSoHoweverItsEndIsNoticed) {
  ibv_wc completion{};
  completion.status = IBV_WC_RETRY_EXC_ERR;
  EXPECT_THAT(
      MessageOf(EndOfConnection(completion, "10.0.0.7")),
      AllOf(HasSubstr(MessageOf(PeerGone("10.0.0.7"))), HasSubstr("the network lost its packets")));
  completion.status = IBV_WC_WR_FLUSH_ERR;
  EXPECT_THAT(MessageOf(EndOfConnection(completion, "10.0.0.7")),
              HasSubstr(MessageOf(PeerGone("10.0.0.7"))));
}

TEST(WcStatusTest, LostPacketsAreNoOrdinaryEndOnAnRdmaDevice) {
  for (const NamedStatus& named : kStatuses) {
    const bool flushed = named.status == IBV_WC_WR_FLUSH_ERR;
    const bool retried = named.status == IBV_WC_RETRY_EXC_ERR;
    EXPECT_EQ(IsOrdinaryEnd(named.status, DeviceKind::kRdma), flushed) << named.name;
    EXPECT_EQ(IsOrdinaryEnd(named.status, DeviceKind::kSoft), flushed || retried) << named.name;
  }
}

TEST(WcStatusTest, OurOwnFaultsAreTellableFromThePeersAndTheWires) {
  const auto code_of = [](ibv_wc_status status) {
    ibv_wc completion{};
    completion.status = status;
    return WcStatus(completion, "peer").code();
  };
  EXPECT_EQ(code_of(IBV_WC_LOC_PROT_ERR), absl::StatusCode::kInternal);
  EXPECT_EQ(code_of(IBV_WC_LOC_LEN_ERR), absl::StatusCode::kInternal);
  EXPECT_EQ(code_of(IBV_WC_REM_ACCESS_ERR), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code_of(IBV_WC_REM_INV_REQ_ERR), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(IBV_WC_RETRY_EXC_ERR), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_of(IBV_WC_WR_FLUSH_ERR), absl::StatusCode::kUnavailable);
}

TEST(ErrnoStatusTest, EachErrnoThatVerbsReturnHasTheCodeACallerActsOn) {
  const auto code_of = [](int error) { return ErrnoStatus(error, "ibv_x").code(); };
  EXPECT_EQ(code_of(EINVAL), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(EFAULT), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(ENOMEM), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(EAGAIN), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(EMFILE), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(EPERM), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code_of(EACCES), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code_of(ENODEV), absl::StatusCode::kNotFound);
  EXPECT_EQ(code_of(ENOSYS), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code_of(EOPNOTSUPP), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code_of(EBUSY), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of(ECONNREFUSED), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_of(ETIMEDOUT), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(code_of(EIO), absl::StatusCode::kInternal);
}

TEST(ErrnoStatusTest, TheMessageSaysWhatWasTriedAndNamesTheErrno) {
  EXPECT_THAT(MessageOf(ErrnoStatus(EBUSY, "ibv_dealloc_pd on soft0")),
              AllOf(HasSubstr("ibv_dealloc_pd on soft0"), HasSubstr("EBUSY")));
}

TEST(ErrnoStatusTest, AnErrnoThatTheLibraryDoesNotKnowIsAnErrorAllTheSame) {
  const absl::Status status = ErrnoStatus(9999, "ibv_x");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("ibv_x"), HasSubstr("9999")));
}

TEST(ErrnoStatusTest, AProvidersNegativeErrnoIsReadAsItsErrno) {
  for (const int error : {ENOMEM, EINVAL, ENOTCONN}) {
    EXPECT_EQ(ErrnoStatus(-error, "ibv_post_send"), ErrnoStatus(error, "ibv_post_send"));
  }
}

}  // namespace verbs_status_test
}  // namespace verbena::internal
