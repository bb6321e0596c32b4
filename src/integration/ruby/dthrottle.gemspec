Gem::Specification.new do |gem|
  gem.name = "dthrottle"
  gem.version = "0.1.0"
  gem.summary = "Asks dthrottled whether a client may be served; a store for Rack::Attack"
  gem.authors = ["The dthrottle authors"]
  gem.license = "Apache-2.0"
  gem.required_ruby_version = ">= 2.7"
  gem.files = Dir["lib/**/*.rb"]
end
