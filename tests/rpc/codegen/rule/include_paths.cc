// Compiled only: where headers of cc_verbena_library lie.

#include <string_view>

#include "far/away/prefixed.verbena.pb.h"
#include "stripped.verbena.pb.h"
#include "tests/rpc/codegen/rule/importing.verbena.pb.h"
#include "tests/rpc/codegen/rule/inner/inner.verbena.pb.h"
#include "tests/rpc/codegen/rule/made.verbena.pb.h"
#include "tests/rpc/codegen/rule/plain.verbena.pb.h"

namespace verbena::testing::rule {

static_assert(plain::Where::kFullName == std::string_view("verbena.testing.rule.plain.Where"));
static_assert(inner::Where::kFullName == std::string_view("verbena.testing.rule.inner.Where"));
static_assert(prefixed::Where::kFullName ==
              std::string_view("verbena.testing.rule.prefixed.Where"));
static_assert(stripped::Where::kFullName ==
              std::string_view("verbena.testing.rule.stripped.Where"));
static_assert(made::Where::kFullName == std::string_view("verbena.testing.rule.made.Where"));
static_assert(importing::Importing::kFullName ==
              std::string_view("verbena.testing.rule.importing.Importing"));

}  // namespace verbena::testing::rule
