// What every conversation with etcd's v3 JSON gateway needs: 64-bit numbers are text there, fields that are zero or
// false are left out, keys and values are base64.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dthrottle::etcd {

using Json = nlohmann::json;

std::string Base64(std::string_view bytes);
// Empty if it is no base64.
std::string FromBase64(std::string_view text);

// The member `name` of an object, or null.
const Json& Member(const Json& object, const char* name);
// A 64-bit number, which may be text or left out.
std::int64_t Number(const Json& object, const char* name);
// The first of a list, or null.
const Json& First(const Json& list);
// Empty if it is no text.
std::string Text(const Json& json);

// Says why an answer of the gateway is of no use; empty: it is of use.
std::string Trouble(int status, const Json& answer);

}    // namespace dthrottle::etcd
