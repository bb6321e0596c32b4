# Lines to the daemon and what its answers say (protocol/query.md, protocol/ask.md), without sockets.
#
# Whatever is in a tag, its question is one line that the daemon takes, and the same tag is the same word wherever it is
# asked: a client that has a part in choosing a tag can neither ask for others nor get away from its own.
module Dthrottle
  QUESTION_LINE_BYTES = 8192
  ANSWER_LINE_BYTES = QUESTION_LINE_BYTES + 512
  TAGS_MAX = 16
  COSTS = (0..2**32 - 1).freeze
  INDICATED_MAX = 1e12 # as at the daemon
  DEADLINE_MAX = 2e6 # seconds; the library takes little more
  AROUND_BYTES = 12 # of a cost, and the blanks in front of it and of its tag

  # `verdict` is :serve, :throttle or, where nobody has decided, :timed_out, :unreachable, :bad_answer, :backing_off or
  # :bad_question. Questions alone tell the rest: `reason` of a refusal is :limit, :never (a tag costs more than its bucket
  # holds), :busy (all its places are taken) or :shed; `refused` is the tag, `rule` its rule; `wait` the seconds after which the same question may pass;
  # `left` the whole tokens of each tag, Float::INFINITY where nothing limits it, nil where it is not told; `hold` what a
  # hold is called that is served, or a wait that can be given up; `delay` the seconds after which a caller that waits goes
  # on; `error` what is wrong with a bad question.
  Answer = Struct.new(:verdict, :serve, :reason, :refused, :rule, :wait, :left, :hold, :delay, :error) do
    alias_method :serve?, :serve
  end

  # The tags and their costs that a caller names. One tag stands for a list of it. A cost beyond all that can be asked for
  # is as much as no bucket holds.
  def self.costs_of(tags)
    return list_of(tags).map { |tag| [tag, 1] } unless tags.is_a?(Hash)

    tags.map { |tag, cost| [tag, at_most(cost)] }
  end

  def self.at_most(cost)
    cost.is_a?(Integer) ? [cost, COSTS.last].min : cost
  end

  def self.list_of(tags)
    tags.is_a?(String) ? [tags] : tags
  end

  # A tag as a word of at most so many bytes.
  def self.word(tag, most)
    word = tag.to_s.b.gsub(/\\(?=x20|x5c)/n, "\\x5c".b) { "\\x5c".b }.gsub(" ", "\\x20".b) { "\\x20".b }.tr("\n", "_")
    if word.bytesize > most # an escape is cut as a whole
      pieces = word.byteslice(0, most + 4).scan(/\\x20|\\x5c|./mn)
      word = "".b
      pieces.each { |piece| word.bytesize + piece.bytesize <= most ? word << piece : break }
    end
    word = word.sub(/\r\z/n, "_")
    word.empty? ? "_".b : word
  end

  NO_QUESTION = { error: "a question names 1 to 16 tags, at costs that are whole numbers from 0 on" }.freeze

  # One line of the query protocol.
  class TagLine
    attr_reader :line

    def initialize(tag)
      @line = tag.to_s.b.tr("\n", "_").sub(/\r\z/n, "_") << "\n"
    end

    # The fields of an Answer, or nil: this is none.
    def read(line)
      { "OK" => [:serve, {}], "NO" => [:throttle, {}] }[line]
    end
  end

  # The line that commits a hold at what its tags have cost, or releases it without. `line` is nil where a cost is.
  class Settlement
    attr_reader :line

    def initialize(hold, actual)
      return if actual.include?(nil)

      @line = [actual.empty? ? "release" : "commit", hold, *actual.map { |cost| Dthrottle.at_most(cost) }].join(" ").b << "\n"
    end

    # Settled, by this line or before; or the daemon does not know the hold.
    def read(line)
      line.start_with?("OK ") ? [:serve, {}] : ([:bad_question, {}] if line.start_with?("NO ", "ERR "))
    end
  end

  # The line of a refund or a report, which is taken, or the daemon says why not. `line` is nil where it is none.
  class Told
    attr_reader :line

    # Gives back what the tags cost.
    def self.refund(tags)
      new(Question.new("refund", tags).line)
    end

    # Reports how the application does with this host's part of a tag.
    def self.indication(tag, value)
      return new(nil) unless value.positive? && value <= INDICATED_MAX

      verb = "indicate #{Float(value)} ".b
      new(verb + Dthrottle.word(tag, QUESTION_LINE_BYTES - verb.size) << "\n")
    end

    def initialize(line)
      @line = line
    end

    def read(line)
      line == "OK" ? [:serve, {}] : ([:bad_question, {}] if line.start_with?("ERR "))
    end
  end

  # The line that asks what to do about the tags while nobody answers. `line` is nil where they are no question.
  class Absence
    attr_reader :line

    def initialize(tags)
      question = Question.new("absent", tags)
      @line = question.line && ["absent", *question.words].join(" ").b << "\n"
    end

    # With `fail_open`, whether to serve meanwhile.
    def read(line)
      { "OK serve" => [:serve, { fail_open: true }], "OK refuse" => [:serve, { fail_open: false }] }
        .fetch(line) { [:bad_question, {}] if line.start_with?("ERR ") }
    end
  end

  # One line of the ask protocol. `tags` are one tag or several that cost 1 each, or a hash of tags to costs. `line` is
  # nil where they are no question. `ttl` in seconds is that of a hold; `wait`, for how many seconds it rather waits
  # than being refused, whatever becomes of the connection, on which other calls ask too.
  class Question
    attr_reader :line, :words

    def initialize(verb, tags, ttl: nil, wait: 0)
      @holds = !ttl.nil?
      if @holds then verb = "#{verb} #{[ttl * 1000, COSTS.last].min.to_i}"
      elsif wait * 1000 >= 1 then verb = "#{verb} wait=#{[(wait * 1000).to_i, COSTS.last].min} keep"
      end
      costs = Dthrottle.costs_of(tags)
      @tags = costs.map(&:first)
      return unless @tags.size.between?(1, TAGS_MAX) && costs.all? { |_, cost| cost.is_a?(Integer) && COSTS.cover?(cost) }

      most = (QUESTION_LINE_BYTES - verb.size) / @tags.size - AROUND_BYTES
      @words = @tags.map { |tag| Dthrottle.word(tag, most) }
      @line = costs.each_with_index.inject(verb.b) { |line, ((_, cost), i)| line << " #{cost} ".b << @words[i] } << "\n"
    end

    def read(line)
      first, *words = line.split(/ +/n).reject(&:empty?) # split(" ") would split a tag at a tab, too
      case first
      when "OK" then served(words)
      when "WAIT" then waiting(*words)
      when "NO" then refused(*words)
      when "ERR" then [:bad_question, { error: line[4..] }]
      end
    end

    private

    # Whole tokens; nil: no number.
    def left(word)
      word == "-" ? Float::INFINITY : (word.to_i if /\A\d+\z/.match?(word))
    end

    def waiting(delay = "", hold = nil, *words)
      return if !/\A\d+(\.\d{1,3})?\z/.match?(delay) || hold.nil?

      verdict, said = served(words)
      verdict && [verdict, { **said, delay: delay.to_f / 1000, hold: hold == "-" ? nil : hold }]
    end

    # A tag that is named more than once has one number, at its first place.
    def served(words)
      hold = words.shift if @holds
      distinct = @words.uniq
      numbers = words.map { |word| left(word) }
      return if numbers.size != distinct.size || numbers.include?(nil)

      [:serve, { hold: hold, left: @words.map { |word| numbers[distinct.index(word)] } }]
    end

    def refused(why = "", wait = "", number = "", rule = "", tag = nil, *more)
      place = @words.index(tag)
      waits = why == "limit" ? /\A\d+\z/.match?(wait) : %w[never busy shed].include?(why) && wait == "-"
      return if !waits || place.nil? || !more.empty? || left(number).nil?

      [:throttle, { reason: why.to_sym, refused: @tags[place], rule: rule, wait: wait.to_i / 1000.0,
                    left: @words.each_index.map { |i| i == place ? left(number) : nil } }]
    end
  end
end
