# Asks the dthrottled of this host whether a client may be served.
#
#   throttle = Dthrottle::Throttle.new
#   refuse unless throttle.ask("login:bob").serve?
#
# It behaves as libdthrottle does: a deadline over each call, serving when nobody answers (or refusing, with fail_open:
# false), a pause after a failure that doubles with each further one. A Throttle may be used by all threads at once and by
# a child after fork.
require_relative "dthrottle/answers"
require_relative "dthrottle/throttle"
require_relative "dthrottle/rack_attack_store"

module Dthrottle
  autoload :LibraryThrottle, "#{__dir__}/dthrottle/library_throttle" # as it needs fiddle
end
