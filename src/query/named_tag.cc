#include "query/named_tag.h"

#include <utility>

namespace dthrottle {

NamedTag::NamedTag(std::string bytes, std::size_t tag_bytes_max, const DigestKey& key) : bytes_(std::move(bytes)) {
  query_.cost = 1;
  if (bytes_.size() <= tag_bytes_max) {
    query_.tag = {bytes_};
    return;
  }
  reader_ = std::make_unique<OverLongReader>(key);
  reader_->Read(bytes_);
  reader_->Read("\r");    // as a line's end has it, so that a CR before it is part of the tag
  over_long_ = reader_->Finish();
  query_.tag = {std::string_view(over_long_.digest.data(), over_long_.digest.size()), true};
  query_.over_long = &over_long_;
}

}    // namespace dthrottle
