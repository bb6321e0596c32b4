module Dthrottle
  # A store for Rack::Attack, and for rate_limit of Rails 7.2:
  #
  #   Rack::Attack.cache.store = Dthrottle::RackAttackStore.new
  #   Rack::Attack.throttle("logins", limit: 100, period: 60) { |request| request.ip if request.path == "/login" }
  #
  # A throttle asks the daemon about one tag, rack::attack:NAME:WHO, on the socket for questions: the daemon's rules decide.
  # Rack::Attack tells a store neither limit nor period, so its count is 1 for what is served and REFUSED for what is not.
  #
  # It takes the options of Throttle (or a `throttle` to share); `on_failure`, when nobody answers in time: :serve or
  # :refuse, and without it the throttle decides (`fail_open`); and `others`, the store for fail2ban and allow2ban, which
  # keep values. With `library: "libdthrottle.so.0"` it decides by that library, and so hot tags and repeated refusals in
  # the worker itself.
  class RackAttackStore
    REFUSED = 2**62

    def initialize(throttle: nil, on_failure: nil, others: nil, **options)
      raise ArgumentError, "on_failure is :serve or :refuse" unless [nil, :serve, :refuse].include?(on_failure)

      type = options.key?(:library) ? LibraryThrottle : Throttle
      @throttle = throttle || type.new(**options)
      @on_failure, @others = on_failure, others
    end

    def increment(key, amount = 1, **options)
      name = windowless(key)
      return others.increment(key, amount, **options) if name&.start_with?("fail2ban:count:", "allow2ban:count:")

      serves?(decide(name ? "#{prefix}:#{name}" : key, amount)) ? 1 : REFUSED
    end

    %i[read write delete delete_matched].each do |name|
      define_method(name) { |*arguments, **options| others.public_send(name, *arguments, **options) }
    end

    private

    # What Rack::Attack counts, without its prefix and the number of the window, which would make each window a fresh
    # bucket; nil where the key is not one of its own. Clients have a part in all that stands behind, so nothing is
    # looked for there.
    def windowless(key)
      return unless key.start_with?("#{prefix}:")

      window, _, name = key.delete_prefix("#{prefix}:").partition(":")
      name if /\A\d+\z/.match?(window)
    end

    def prefix
      defined?(::Rack::Attack) ? ::Rack::Attack.cache.prefix : "rack::attack"
    end

    # Whether a rule limits tags, the first answer says.
    def decide(tag, amount)
      return @throttle.ask_all(tag => amount) if @by_verdict

      @by_verdict = @throttle.respond_to?(:ask_all)
      answer = @throttle.ask_question(tag => amount)
      warn_once(tag) if answer.left.first == Float::INFINITY
      answer
    end

    def serves?(answer)
      decided = %i[serve throttle].include?(answer.verdict)
      decided || @on_failure.nil? ? answer.serve? : @on_failure == :serve
    end

    def others
      @others or raise "dthrottled keeps no values: fail2ban, allow2ban and reset! need `others`"
    end

    def warn_once(tag)
      warn "dthrottled has no rule for #{tag.inspect}, so nothing limits it" unless @warned
      @warned = true
    end
  end
end
