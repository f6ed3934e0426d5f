// Compiled only: a target that depends on a verbena_proto_library alone may include the headers of
// its messages and of its services, and with the library of mocks those, too.

#include <string_view>
#include <type_traits>

#include "far/whole.pb.h"
#include "far/whole.verbena.pb.h"
#include "far/whole_mock.verbena.pb.h"

namespace verbena::testing::rule::whole {

static_assert(Whole::kFullName == std::string_view("verbena.testing.rule.whole.Whole"));
static_assert(std::is_base_of_v<Whole::StubInterface, MockWholeStub>);
static_assert(std::is_default_constructible_v<Request>);

}  // namespace verbena::testing::rule::whole
