// A link that ends because a completion failed tells its user in words why, and the log the
// constant of verbs. The log's fields say which link it is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/base/captured_log.h"
#include "tests/transport/link/links_fixture.h"
#include "verbena/transport/device/verbs_status.h"
#include "verbena/transport/executor/completion_listener.h"
#include "verbena/transport/link/endpoint.h"
#include "verbena/transport/link/link.h"

namespace verbena::internal {
namespace failed_completion_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class FailedCompletionTest : public LinksFixture {
 protected:
  void SetUp() override { Start({}, {}); }

  // Fails a SEND of a new link with `status`, as the device would. Returns what the user hears.
  absl::Status Fail(ibv_wc_status status) {
    client_listener_ = Receiver();
    server_listener_ = Receiver();
    Link* link = Connect(client_listener_, server_listener_);
    if (link == nullptr) return absl::UnknownError("no link");
    peer_ = link->peer();
    FrameHeader frame;
    frame.kind = FrameKind::kRequest;
    EXPECT_NE(link->Append(frame, 0), nullptr);
    executor().Poll();
    ibv_wc completion = {};
    completion.wr_id = WrId{WrId::Kind::kSend, 0, link->key().generation, link->key().slot}.Pack();
    completion.status = status;
    auto& listener =
        (CompletionListener&)client();  // NOLINT: a private base, which only this cast reaches
    listener.OnCompletions(&completion, 1);
    WaitUntilNoLinks();
    return client_listener_.reason();
  }

  Receiver client_listener_, server_listener_;
  std::string peer_;
};

TEST_F(FailedCompletionTest, APeerThatAcknowledgesNothingIsGone) {
  CapturedLog log;
  const absl::Status told = Fail(IBV_WC_RETRY_EXC_ERR);
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(told.message(), AllOf(HasSubstr(PeerGone(peer_).message()), Not(HasSubstr("IBV_"))));
  EXPECT_THAT(log.Take(), Contains(HasSubstr("IBV_WC_RETRY_EXC_ERR")));
}

TEST_F(FailedCompletionTest, BothSidesSayTheSameOfALinkThatTheOtherClosed) {
  EXPECT_THAT(Fail(IBV_WC_RETRY_EXC_ERR).message(), HasSubstr("closed the connection or died"));
  EXPECT_THAT(server_listener_.reason().message(), HasSubstr("closed the connection or died"));
}

TEST_F(FailedCompletionTest, ARefusedAccessIsToldInWords) {
  CapturedLog log;
  const absl::Status told = Fail(IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(absl::IsPermissionDenied(told)) << told;
  EXPECT_THAT(told.message(), AllOf(HasSubstr(peer_), Not(HasSubstr("IBV_"))));
  EXPECT_THAT(log.Take(), Contains(HasSubstr("IBV_WC_REM_ACCESS_ERR")));
}

TEST_F(FailedCompletionTest, TheLogTellsByFieldsWhichLinkOpensAndCloses) {
  CapturedLog log("off,link=debug");
  (void)Fail(IBV_WC_RETRY_EXC_ERR);
  std::vector<std::string> opened, closed;
  for (CapturedLog::Line& line : log.TakeLines()) {
    EXPECT_EQ(line.component, LogComponent::kLink) << line.text;
    if (line.fields["peer"] != peer_) continue;
    if (line.level == LogLevel::kDebug) opened.push_back(line.fields["link"]);
    if (line.text.find(" closes: ") != std::string::npos) closed.push_back(line.fields["link"]);
  }
  EXPECT_THAT(opened, SizeIs(1));
  EXPECT_EQ(closed, opened);
}

}  // namespace failed_completion_test
}  // namespace verbena::internal
