require "io/wait"
require "ipaddr"
require "socket"

module Dthrottle
  # When to leave a daemon alone that has failed: for a pause that doubles with each failure in a row, after which one call
  # finds out whether it is back. Instants are seconds of the monotonic clock. The caller holds a lock.
  class Pause
    def initialize(least, most, chance: Random.new)
      @least, @most, @chance = least, most, chance
      @failures = 0
      @failed_at = @length = 0.0
      @probe = nil
    end

    # False: do not ask now.
    def begin(call, now)
      return true if @failures.zero?
      return false if @probe || now - @failed_at < @length

      @probe = call
      true
    end

    def answered(call)
      @failures = 0
      forget(call)
    end

    # A call that began before the last failure has failed together with it: that counts once. Chance shortens the pause
    # by up to a quarter, so that the workers of a host do not all come back at once.
    def failed(call, began, now)
      if @failures.zero? || began > @failed_at
        @failures += 1
        @length = [@least * 2**[@failures - 1, 30].min, @most].min * (1 - @chance.rand / 4)
        @failed_at = now
      end
      forget(call)
    end

    # Nobody waits for the call any more, and nothing is known. nil: for any call.
    def forget(call = nil)
      @probe = nil if call.nil? || @probe.equal?(call)
    end
  end

  # Connections to one socket of the daemon. A call has one of them for itself; one on which anything went wrong is closed,
  # so a late answer is never taken for another one.
  class Channel
    class Late < StandardError; end
    class BadAnswer < StandardError; end

    def initialize(address, backoff_min, backoff_max)
      @sockaddr = parse(address)
      @pause = Pause.new(backoff_min, backoff_max)
      @mutex = Mutex.new
      begin_without_connections
    end

    # What has been answered, in the order of the questions, and the verdict on the others.
    def exchange(questions, deadline)
      return [[], :timed_out] unless deadline.positive?

      after_fork if @pid != Process.pid
      began = now
      read = []
      begin
        return [[], :backing_off] unless @mutex.synchronize { @pause.begin(read, began) }

        failure = attempt(questions, read, began + [deadline, DEADLINE_MAX].min)
        @mutex.synchronize { failure ? @pause.failed(read, began, now) : @pause.answered(read) }
      ensure # an exception from outside, such as that of Timeout: nothing is known of the daemon
        @mutex.synchronize { @pause.forget(read) }
      end
      [read, failure]
    end

    def close
      @mutex.synchronize { @idle.each(&:close).clear }
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # A name would have to be looked up, which takes as long as it takes; so ADDRESS is numeric.
    def parse(address)
      return Socket.sockaddr_un($1) if /\Aunix:(.+)\z/m =~ address

      _, six, four, port = */\Atcp:(?:\[([\h:.]+)\]|([\d.]+)):(\d{1,5})\z/.match(address)
      raise IPAddr::Error unless port.to_i.between?(1, 65_535)

      Socket.sockaddr_in(port.to_i, IPAddr.new(six || four, six ? Socket::AF_INET6 : Socket::AF_INET).to_s)
    rescue IPAddr::Error
      raise ArgumentError, "#{address} is neither unix:/path nor tcp:ADDRESS:PORT with a numeric address"
    end

    def begin_without_connections
      @pid = Process.pid
      @idle = []
    end

    # Only the thread that forked lives on, and connections are the parent's.
    def after_fork
      @mutex = Mutex.new
      kept = @idle
      begin_without_connections
      @pause.forget
      kept.each(&:close)
    end

    # A connection that was kept may have ended with a daemon that was restarted: then a fresh one is tried.
    def attempt(questions, read, deadline)
      kept = take_kept
      failure = kept ? on(kept, questions, read, deadline) : :unreachable
      failure == :unreachable && read.empty? ? on(nil, questions, read, deadline) : failure
    end

    # A connection that is still there, with nothing on it that was not asked for.
    def take_kept
      socket = @mutex.synchronize { @idle.pop }
      return socket if socket.nil? || socket.read_nonblock(1, exception: false) == :wait_readable

      socket.close
      nil
    rescue SystemCallError
      socket.close
      nil
    end

    # nil: all have been answered.
    def on(socket, questions, read, deadline)
      socket ||= connect(deadline)
      talk(socket, questions, read, deadline)
      answered, socket = socket, nil
      @mutex.synchronize { @idle.push(answered) }
      nil
    rescue Late
      :timed_out
    rescue BadAnswer
      :bad_answer
    rescue SystemCallError, IOError
      :unreachable
    ensure
      socket&.close
    end

    def connect(deadline)
      family = Addrinfo.new(@sockaddr).afamily
      socket = Socket.new(family, Socket::SOCK_STREAM)
      socket.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1) unless family == Socket::AF_UNIX
      if socket.connect_nonblock(@sockaddr, exception: false) == :wait_writable
        within(deadline) { |left| socket.wait_writable(left) }
        error = socket.getsockopt(Socket::SOL_SOCKET, Socket::SO_ERROR).int
        raise SystemCallError.new("connect", error) unless error.zero?
      end
      connected = socket
    ensure
      socket&.close unless connected
    end

    # It looks behind the deadline too: a thread that had to wait for others may find its answer.
    def within(deadline)
      raise Late unless yield([deadline - now, 0].max)
    end

    def talk(socket, questions, read, deadline)
      unsent = questions.map(&:line).join
      begun = "".b
      until read.size == questions.size
        sent = unsent.empty? ? 0 : socket.write_nonblock(unsent, exception: false)
        unsent = unsent.byteslice(sent..-1) if sent.is_a?(Integer)
        within(deadline) { |left| unsent.empty? ? socket.wait_readable(left) : IO.select([socket], [socket], nil, left) }
        received = socket.read_nonblock(65_536, exception: false)
        raise EOFError if received.nil?

        hear(begun << received, questions, read) unless received == :wait_readable
      end
      raise BadAnswer unless begun.empty?
    end

    # Reads the whole lines and leaves what is begun.
    def hear(begun, questions, read)
      while (line = begun.slice!(/\A[^\n]*\n/n))
        said = questions[read.size]&.read(line.chomp("\n"))
        raise BadAnswer if said.nil?

        read << said
      end
      raise BadAnswer if begun.bytesize > ANSWER_LINE_BYTES
    end
  end

  # Asks at `query` for one tag and at `questions` for several. Times are in seconds; `deadline` is for each whole call,
  # unless a call names another one.
  class Throttle
    def initialize(query: "unix:/run/dthrottle/query.sock", questions: "unix:/run/dthrottle/ask.sock", deadline: 0.02,
                   fail_open: true, backoff_min: 0.01, backoff_max: 5.0)
      @deadline, @fail_open = deadline, fail_open
      @query, @questions = [query, questions].map { |address| Channel.new(address, backoff_min, backoff_max) }
    end

    # Spends a token of the tag. LF anywhere in it and CR at its end are sent as "_".
    def ask(tag, deadline = @deadline)
      ask_batch([tag], deadline).first
    end

    # An answer for each tag. They go out at once.
    def ask_batch(tags, deadline = @deadline)
      tags = Dthrottle.list_of(tags)
      return [] if tags.empty?

      read, failure = @query.exchange(tags.map { |tag| TagLine.new(tag) }, deadline)
      tags.each_index.map { |i| answer(*(read[i] || [failure, {}])) }
    end

    # Either every tag has what it costs and pays, or no tag pays. `tags` are 1 to 16 tags that cost 1 each, or one such
    # tag, or a hash of tags to costs. Under rules with `delay` the question rather waits for up to `wait` seconds than
    # being refused: it is served, and the caller goes on after `delay` seconds of the answer. Until then
    # release(answer.hold) gives it up.
    def ask_question(tags, deadline = @deadline, wait = 0)
      question("take", tags, deadline, wait: wait)
    end

    # What ask_question would be told now. Nothing is spent.
    def peek(tags, deadline = @deadline, wait = 0)
      question("peek", tags, deadline, wait: wait)
    end

    # As ask_question, for as long as it takes to know what the tags cost in the end; `ttl` seconds after it all comes back
    # that nobody has settled. `hold` of the answer says what to settle; nil where nobody has held anything.
    def hold(tags, ttl, deadline = @deadline)
      question("hold", tags, deadline, ttl: ttl)
    end

    # Settles a hold: each of its tags has cost `actual`, a number, or an array of numbers for the tags in order. Less than
    # was held comes back, more is charged and may make debt. Only the first settlement counts, so a call that has failed may
    # be repeated. Returns the verdict: :serve, it is settled; :bad_question, the daemon does not know it, or a cost is
    # no number.
    def commit(hold, actual, deadline = @deadline)
      hold.nil? ? :serve : tell(Settlement.new(hold, actual.is_a?(Array) ? actual : [actual]), deadline)
    end

    # Settles a hold of which nothing was used, or gives up a wait.
    def release(hold, deadline = @deadline)
      commit(hold, [], deadline)
    end

    # Gives back what turned out not to count; `tags` as for ask_question. Returns the verdict: :serve, it has come back. It
    # may come back twice where a call that failed is repeated.
    def refund(tags, deadline = @deadline)
      tell(Told.refund(tags), deadline)
    end

    # Reports how this application does with its host's part of a divided tag: a number above 0, at most 1e12, that
    # falls when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s. Returns
    # the verdict: :serve, it is taken; :bad_question, `value` is no such number, the daemon does not go by reports
    # (`capacity.indicator`), or it divides no such tag.
    def indicate(tag, value, deadline = @deadline)
      tell(Told.indication(tag, value), deadline)
    end

    # Asks what the rules of these tags want while nobody answers (`fail_closed`), and does so from now on in place of
    # `fail_open`. Returns the verdict: :serve, the daemon has said it; else nothing has changed.
    def learn(tags, deadline = @deadline)
      absence = Absence.new(tags)
      return :bad_question if absence.line.nil?

      read, failure = @questions.exchange([absence], deadline)
      verdict, said = read.first || [failure, {}]
      @fail_open = said.fetch(:fail_open, @fail_open)
      verdict
    end

    def close
      [@query, @questions].each(&:close)
    end

    private

    def question(verb, tags, deadline, **more)
      question = Question.new(verb, tags, **more)
      said = question.line.nil? ? answer(:bad_question, NO_QUESTION) : exchange(question, deadline)
      warn "dthrottle was asked what is no question: #{said.error}" if said.error && !@warned
      @warned ||= !said.error.nil?
      said
    end

    def tell(told, deadline)
      told.line.nil? ? :bad_question : exchange(told, deadline).verdict
    end

    def exchange(question, deadline)
      read, failure = @questions.exchange([question], deadline)
      answer(*(read.first || [failure, {}]))
    end

    def answer(verdict, said)
      serve = verdict == :serve || (@fail_open && verdict != :throttle)
      Answer.new(verdict, serve, said[:reason], said[:refused], said[:rule], said[:wait] || 0.0, said[:left] || [],
                 said[:hold], said[:delay] || 0.0, said[:error])
    end
  end
end
