# What ask_lines.c does, with the Ruby package.
require_relative "../../src/integration/ruby/lib/dthrottle"

REASONS = [nil, :limit, :never, :shed].freeze
address, deadline, mode = ARGV
throttle = Dthrottle::Throttle.new(query: address, questions: address, deadline: deadline.to_i / 1000.0)
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
  tags = tags_of(line) if mode == "questions"
  before = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
  answer = tags ? throttle.ask_question(tags) : throttle.ask(line.chomp("\n"))
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) - before
  puts "#{answer.verdict.to_s.tr('_', ' ')}/#{took}" + (tags ? "/#{said(answer, tags)}" : "")
end
