# A worker with Rack::Attack: rack_app.rb ADDRESS LIMIT DEADLINE_S ON_FAILURE [LIBRARY]. A line of standard input is a client
# that makes a request; the status and Retry-After of the response are printed, "-" for none.
require "rack"
require "rack/attack"
require_relative "../../src/integration/ruby/lib/dthrottle"

address, limit, deadline, on_failure, library = ARGV
$stdout.sync = true
Rack::Attack.cache.store = Dthrottle::RackAttackStore.new(questions: address, deadline: deadline.to_f,
                                                          on_failure: on_failure.to_sym, **{ library: library }.compact)
Rack::Attack.throttle("clients", limit: limit.to_i, period: 60) { |request| request.get_header("HTTP_CLIENT") }
app = Rack::MockRequest.new(Rack::Lint.new(Rack::Attack.new(->(_) { [200, { "Content-Type" => "text/plain" }, ["served"]] })))

$stdin.each_line do |line|
  response = app.get("/", "HTTP_CLIENT" => line.chomp)
  puts "#{response.status} -" # Retry-After is the period, because the store can tell no wait
end
