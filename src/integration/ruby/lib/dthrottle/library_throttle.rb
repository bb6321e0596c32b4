require "fiddle"

module Dthrottle
  # A Throttle that decides by libdthrottle whether tags are served, and so hot tags and repeated refusals in the worker
  # itself, by the page of its process (protocol/page.md): some 3 us in place of 20 or more.
  #
  #   throttle = Dthrottle::LibraryThrottle.new
  #
  # It needs the package libdthrottle0 and no compiler. `library` is its name or path. A call holds up its thread until the
  # daemon answers, and fibers of that thread; other threads go on. It decides so by `ask` and `ask_all`, whose deadline is
  # rounded up to whole milliseconds; all else is a Throttle's own.
  class LibraryThrottle < Throttle
    VERDICTS = %i[serve throttle timed_out unreachable bad_answer backing_off bad_question].freeze # as in dthrottle.h

    def initialize(query: "unix:/run/dthrottle/query.sock", questions: "unix:/run/dthrottle/ask.sock",
                   library: "libdthrottle.so.0", backoff_min: 0.01, backoff_max: 5.0, **options)
      super(query: query, questions: questions, backoff_min: backoff_min, backoff_max: backoff_max, **options)
      load(library)
      given = [0, *[backoff_min, backoff_max].map { |seconds| [(1000 * seconds).to_i, 1].max }].pack("L3x20")
      @tags = open("dthrottle_open", query, given)
      @named = open("dthrottle_open_ask", questions, given)
    end

    def ask(tag, deadline = @deadline)
      text = tag.to_s.b
      answer(VERDICTS[@ask.call(@tags, text, text.bytesize, milliseconds(deadline))], {})
    end

    # As ask_question, where only the verdict is wanted: the answer says nothing else.
    def ask_all(tags, deadline = @deadline)
      costs = Dthrottle.costs_of(tags).to_a # a tag may be named twice
      return answer(:bad_question, {}) unless costs.all? { |_, cost| COSTS.cover?(cost) && cost.is_a?(Integer) }

      texts = costs.map { |tag, _| Fiddle::Pointer[tag.to_s.b] }
      named = Fiddle::Pointer[texts.zip(costs).map { |text, (_, cost)| [text.to_i, text.size, cost].pack("JJLx4") }.join]
      question = Fiddle::Pointer[[0, named.to_i, texts.size].pack("lx4JJx40")] # struct dthrottle_question
      answer(VERDICTS[@ask_question.call(@named, question, nil, milliseconds(deadline))], {})
    end

    # No other thread may be asking, nor ask later.
    def close
      super
      [@tags, @named].compact.each do |handle|
        handle.free = nil
        @close.call(handle)
      end
      @tags = @named = nil
    end

    private

    def load(library)
      @library = Fiddle.dlopen(library)
      pointer, size, int = Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, Fiddle::TYPE_INT
      @ask = function("dthrottle_ask", [pointer, pointer, size, int], int)
      @ask_question = function("dthrottle_ask_question", [pointer, pointer, pointer, int], int)
      @close = function("dthrottle_close", [pointer], Fiddle::TYPE_VOID)
    end

    def function(name, takes, gives)
      Fiddle::Function.new(@library[name], takes, gives)
    end

    def open(name, address, options)
      pointer = Fiddle::TYPE_VOIDP
      handle = function(name, [pointer, pointer], pointer).call(address, options)
      unless handle.null?
        handle.free = @close # when it is collected
        return handle
      end

      close
      raise ArgumentError, "#{address} is neither unix:/path nor tcp:ADDRESS:PORT"
    end

    def milliseconds(seconds)
      (1000 * [seconds, DEADLINE_MAX].min).ceil
    end
  end
end
