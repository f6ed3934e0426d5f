// All that Verbena has for its users' tests: a server in the test's process, a clock that the test
// moves, injected faults, mocks' answers, and matchers. For tests alone: it needs GoogleMock.
//
//   #include "verbena/testing.h"   // @verbena//:testing
//
//   TEST(BlocksTest, AMissingBlockIsNotFound) {
//     verbena::testing::InProcess<BlockService> blocks;
//     v1::Blocks::Stub stub(blocks.channel());
//     EXPECT_THAT(blocks.Run(stub.Stat({})), StatusIs(absl::StatusCode::kNotFound));
//   }

#ifndef VERBENA_TESTING_H_
#define VERBENA_TESTING_H_

#include "verbena/rpc/testing/fake_clock.h"      // IWYU pragma: export
#include "verbena/rpc/testing/fault_injector.h"  // IWYU pragma: export
#include "verbena/rpc/testing/in_process.h"      // IWYU pragma: export
#include "verbena/rpc/testing/matchers.h"        // IWYU pragma: export
#include "verbena/rpc/testing/mock_stream.h"     // IWYU pragma: export
#include "verbena/rpc/testing/mocked_call.h"     // IWYU pragma: export

#endif  // VERBENA_TESTING_H_
