# What ask_lines.c does, with the Ruby package; "library" and its path: one tag by libdthrottle, and with "by-page" all of
# several.
require_relative "../../src/integration/ruby/lib/dthrottle"

REASONS = [nil, :limit, :never, :shed, :busy].freeze
address, deadline, *modes = ARGV
given = { query: address, questions: address, deadline: deadline.to_i / 1000.0 }
throttle = modes.include?("library") ? Dthrottle::LibraryThrottle.new(library: modes.last, **given) : Dthrottle::Throttle.new(**given)
$stdout.sync = true

def tags_of(line)
  line.split.each_slice(2).to_h { |cost, tag| [tag.gsub(/%(..)/n) { $1.hex.chr }, cost.to_i] }
end

def said(answer, tags)
  left = tags.keys.each_index.map { |i| answer.left[i] == Float::INFINITY ? -1 : answer.left[i] || 0 }
  refused = answer.refused ? tags.keys.index(answer.refused) : 0
  [REASONS.index(answer.reason), refused, (1000 * answer.wait).round, answer.rule || "-", *left].join(" ")
end

$stdin.binmode.each_line do |line|
  verb, first, *words = line.split(" ")
  if %w[commit release].include?(verb)
    puts "#{throttle.public_send(verb, first, *words.map(&:to_i)).to_s.tr('_', ' ')}/0/-"
    next
  end
  if verb == "indicate"
    verdict = throttle.indicate(words.first.gsub(/%(..)/n) { $1.hex.chr }, first.to_f)
    puts "#{verdict.to_s.tr('_', ' ')}/0/-"
    next
  end
  if verb == "one"
    answers = Array.new(2) { throttle.ask_question(first.gsub(/%(..)/n) { $1.hex.chr }) }
    left = answers.map { |answer| answer.left[0] }.join(" ")
    puts "#{answers.last.verdict}/0/#{left} #{throttle.ask_batch(first).size}"
    next
  end
  if verb == "refund"
    puts "#{throttle.refund(tags_of([first, *words].join(' '))).to_s.tr('_', ' ')}/0/-"
    next
  end
  if verb == "learn"
    verdict = throttle.learn([first, *words].map { |tag| tag.gsub(/%(..)/n) { $1.hex.chr } })
    puts "#{verdict.to_s.tr('_', ' ')}/0/#{throttle.ask('C', 0).serve? ? 'serve' : 'refuse'}"
    next
  end
  holds, waits = %w[hold wait].map { |word| verb == word }
  tags = tags_of(holds || waits ? words.join(" ") : line) if modes.include?("questions")
  before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
  answer = if holds then throttle.hold(tags, first.to_i / 1000.0)
           elsif waits then throttle.ask_question(tags, deadline.to_i / 1000.0, first.to_i / 1000.0)
           elsif modes.include?("by-page") then throttle.ask_all(tags_of(line))
           else tags ? throttle.ask_question(tags) : throttle.ask(line.chomp("\n"))
           end
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) - before
  puts "#{answer.verdict.to_s.tr('_', ' ')}/#{took}" + (tags ? "/#{said(answer, tags)}" : "") +
    (waits ? " #{(1000 * answer.delay).round}" : "") + (holds || waits ? " #{answer.hold || '-'}" : "")
end
