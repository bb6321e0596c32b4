#include "frontend/spop/front_end.h"

#include "io/fresh.h"

namespace dthrottle {

void SpopFrontEnd::Start() {
  server_.emplace(host_.loop, host_.admin.limiter(), 0, FreshPrng(), settings().query.max_tag_bytes,
                  section().idle_timeout);
}

}    // namespace dthrottle
