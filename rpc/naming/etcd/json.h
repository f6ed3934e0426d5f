// Json: reads of a JSON object that somebody else wrote, each with an error that names the field.
//
// Pure functions over Boost.JSON, without exceptions.

#ifndef VERBENA_RPC_NAMING_ETCD_JSON_H_
#define VERBENA_RPC_NAMING_ETCD_JSON_H_

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::internal {

// INTERNAL: the text is no JSON object, or nests deeper than 32.
absl::StatusOr<boost::json::object> ParseJsonObject(std::string_view text);

// Fields that are not there are as proto3 means them: 0, "" or false. Each fails with INTERNAL if
// the field has another kind.
absl::StatusOr<int64_t> JsonInteger(const boost::json::object& object, std::string_view name);
absl::StatusOr<std::string> JsonText(const boost::json::object& object, std::string_view name);
absl::StatusOr<std::string> JsonBase64(const boost::json::object& object, std::string_view name);
absl::StatusOr<bool> JsonBool(const boost::json::object& object, std::string_view name);
// nullptr: it is not there.
absl::StatusOr<const boost::json::object*> JsonObject(const boost::json::object& object,
                                                      std::string_view name);
absl::StatusOr<const boost::json::array*> JsonArray(const boost::json::object& object,
                                                    std::string_view name);

}  // namespace verbena::internal

#endif  // VERBENA_RPC_NAMING_ETCD_JSON_H_
