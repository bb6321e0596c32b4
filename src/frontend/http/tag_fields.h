// Tags that are made of a request's own fields: in "ip:{x-forwarded-for}" the braces stand for what a proxy says there.
//
// A proxy that can only be told a URL (Traefik's forwardAuth) has no other way to say whom a request is for. Only the
// fields that admin.http_fields names are looked at, because a client could put braces into a part of a tag that is its
// own.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dthrottle {

// Which fields, by names in lower case, and how many proxies stand between the client and this host that each add the
// address it was asked from to X-Forwarded-For.
struct TagFields {
  std::span<const std::string> names;
  unsigned trusted_hops = 1;
};

// The tag with each "{name}" of a field that is named replaced by what the field says; other braces stay. `lines` are a
// request's fields as they came, each with its CR LF. A field that comes more than once says all its values with ", "
// between, one that does not come says nothing. Of X-Forwarded-For it is the address that the outermost trusted proxy
// added, the `trusted_hops`th from the end, or the first where there are fewer: what stands before it is the client's
// own word.
std::string FillTag(std::string_view tag, std::string_view lines, const TagFields& fields);

// All values of a field with ", " between. REQUIRES: as FillTag.
std::string FieldValues(std::string_view name, std::string_view lines);

}    // namespace dthrottle
