// Each parameter of protoc-gen-verbena is read, and each wrong one is refused with what is right.

#include "verbena/rpc/codegen/names.h"

#include "gtest/gtest.h"

namespace verbena::codegen {
namespace parameters_test {

std::string ProblemOf(const std::string& text) {
  Parameters parameters;
  return ParseParameters(text, &parameters);
}

TEST(ParametersTest, NoneAreTheDefaults) {
  Parameters parameters;
  EXPECT_EQ("", ParseParameters("", &parameters));
  EXPECT_FALSE(parameters.generate_mock_code);
  EXPECT_EQ("", parameters.services_namespace);
  EXPECT_EQ("", parameters.export_macro);
}

TEST(ParametersTest, AllAreRead) {
  Parameters parameters;
  EXPECT_EQ(
      "", ParseParameters("export_macro=A_B1,services_namespace=a::b_2::c,generate_mock_code=true",
                          &parameters));
  EXPECT_TRUE(parameters.generate_mock_code);
  EXPECT_EQ("a::b_2::c", parameters.services_namespace);
  EXPECT_EQ("A_B1", parameters.export_macro);
  EXPECT_EQ("", ParseParameters("generate_mock_code=false", &parameters));
  EXPECT_FALSE(parameters.generate_mock_code);
}

TEST(ParametersTest, WrongValuesAreRefusedWithWhatIsRight) {
  for (const char* value : {"", "=", "=1", "=True"}) {
    EXPECT_EQ("generate_mock_code is true or false, not '" +
                  std::string(value).substr(*value == '=') + "'",
              ProblemOf("generate_mock_code" + std::string(value)));
  }
  for (const char* name : {"", "a:b", "a::", "::a", "1a", "a.b", "a::class", "a b"}) {
    EXPECT_EQ("services_namespace is a C++ namespace, such as rpc or rpc::v1, not '" +
                  std::string(name) + "'",
              ProblemOf("services_namespace=" + std::string(name)));
  }
  for (const char* name : {"", "A::B", "7", "export", "A()"}) {
    EXPECT_EQ("export_macro is the name of a macro, such as STORE_EXPORT, not '" +
                  std::string(name) + "'",
              ProblemOf("export_macro=" + std::string(name)));
  }
}

TEST(ParametersTest, AParameterIsGivenOnce) {
  EXPECT_EQ("parameter export_macro is given twice", ProblemOf("export_macro=A,export_macro=B"));
}

TEST(ParametersTest, AnUnknownOneIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(
      "unknown parameter 'mocks'; known are export_macro=NAME, generate_mock_code=true, "
      "services_namespace=NAME",
      ProblemOf("generate_mock_code=true,mocks"));
}

}  // namespace parameters_test
}  // namespace verbena::codegen
