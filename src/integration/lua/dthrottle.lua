-- Asks dthrottled from LuaJIT, by FFI over libdthrottle.
--
--   local throttle = require("dthrottle").open()
--   if not throttle:ask("login:bob").serve then refuse() end
--
-- A call returns within its deadline, serves when nobody answers (or refuses, with fail_open = false), and leaves a daemon
-- that has failed alone for a while: see libdthrottle(3). Inside nginx a call holds up its worker until the daemon answers,
-- some 20 us; conf/examples/nginx-lua waits without that, at more CPU. Keep one handle for each worker.
local ffi = require("ffi")

ffi.cdef [[
typedef struct dthrottle dthrottle;
typedef struct { unsigned connections_max, backoff_min_ms, backoff_max_ms, reserved[5]; } dthrottle_options;
typedef struct { const char* text; size_t bytes; uint32_t cost, reserved; } dthrottle_tag;
typedef struct {
  int verb;
  const dthrottle_tag* tags;
  size_t count;
  unsigned tell_limit, ttl_ms, wait_ms, sleeps, by_page;
  uint64_t reserved[2];
} dthrottle_question;
typedef struct {
  int reason;
  size_t refused;
  int64_t wait_ms, left[16];
  char rule[65];
  size_t nearest;
  int64_t quota, window_ms, next_ms;
  uint64_t hold;
  int64_t delay_us;
  uint64_t reserved[2];
} dthrottle_answer;

dthrottle* dthrottle_open(const char* address, const dthrottle_options* options);
dthrottle* dthrottle_open_ask(const char* address, const dthrottle_options* options);
int dthrottle_ask(dthrottle* handle, const char* tag, size_t tag_bytes, int deadline_ms);
size_t dthrottle_ask_batch(dthrottle* handle, const char* const* tags, const size_t* tag_bytes, size_t count,
                           int* verdicts, int deadline_ms);
int dthrottle_ask_question(dthrottle* handle, const dthrottle_question* question, dthrottle_answer* answer,
                           int deadline_ms);
int dthrottle_commit(dthrottle* handle, uint64_t hold, const uint32_t* actual, size_t count, int deadline_ms);
int dthrottle_release(dthrottle* handle, uint64_t hold, int deadline_ms);
int dthrottle_refund(dthrottle* handle, const dthrottle_tag* tags, size_t count, int deadline_ms);
int dthrottle_learn(dthrottle* handle, const dthrottle_tag* tags, size_t count, int* refuse, int deadline_ms);
int dthrottle_indicate(dthrottle* handle, const char* tag, size_t tag_bytes, double value, int deadline_ms);
const char* dthrottle_verdict_name(int verdict);
void dthrottle_close(dthrottle* handle);
]]

local TAKE, PEEK, HOLD = 0, 1, 2
local SERVE, THROTTLE, BAD_QUESTION = 0, 1, 6
local TAGS_MAX = 16
local COST_MAX = 4294967295
local REASONS = { [1] = "limit", [2] = "never", [3] = "shed", [4] = "busy" }

local Throttle = {}
Throttle.__index = Throttle

-- `options`, all of which have defaults: `query` and `questions` are "unix:/path" or "tcp:ADDRESS:PORT", for one tag and for
-- several; `deadline_ms` (20); `fail_open` (true); `library`, the name or path of libdthrottle. An error if an address is
-- none. Nothing is connected yet.
local function open(options)
  options = options or {}
  local library = ffi.load(options.library or "libdthrottle.so.0")
  local function handle(opens, address)
    local opened = opens(address, nil)
    if opened == nil then error("dthrottle: no address: " .. tostring(address), 3) end
    return ffi.gc(opened, function(unused) library.dthrottle_close(unused) end) -- the library stays loaded until then
  end
  return setmetatable({
    library = library,
    query = handle(library.dthrottle_open, options.query),
    questions = handle(library.dthrottle_open_ask, options.questions),
    deadline_ms = options.deadline_ms or 20,
    fail_open = options.fail_open ~= false,
  }, Throttle)
end

-- An answer has `verdict`, a text as of dthrottle_verdict_name, and `serve`, whether the client is to be served.
function Throttle:decided(verdict)
  return {
    verdict = ffi.string(self.library.dthrottle_verdict_name(verdict)),
    serve = verdict == SERVE or (self.fail_open and verdict ~= THROTTLE),
  }
end

function Throttle:no_question()
  local said = self:decided(BAD_QUESTION)
  said.error = "a question names 1 to " .. TAGS_MAX .. " tags, at costs that are whole numbers from 0 on"
  said.left, said.wait_ms, said.delay_s = {}, 0, 0
  return said
end

-- Spends a token of the tag.
function Throttle:ask(tag, deadline_ms)
  return self:decided(self.library.dthrottle_ask(self.query, tag, #tag, deadline_ms or self.deadline_ms))
end

-- The tags that a caller names. One tag stands for a list of it.
local function list_of(tags)
  if type(tags) == "string" then return { tags } end
  if #tags == 0 and next(tags) ~= nil then error("dthrottle: tags are a list: { { tag, cost }, ... }", 3) end
  return tags
end

-- An answer for each tag of a list. They go out at once.
function Throttle:ask_batch(tags, deadline_ms)
  tags = list_of(tags)
  local texts, bytes, verdicts = ffi.new("const char*[?]", #tags), ffi.new("size_t[?]", #tags), ffi.new("int[?]", #tags)
  for i, tag in ipairs(tags) do
    texts[i - 1], bytes[i - 1] = tag, #tag
  end
  self.library.dthrottle_ask_batch(self.query, texts, bytes, #tags, verdicts, deadline_ms or self.deadline_ms)
  local answers = {}
  for i = 1, #tags do answers[i] = self:decided(verdicts[i - 1]) end
  return answers
end

-- What is beyond all that can be asked for is as much as no bucket holds; nil: it is no cost.
local function cost_of(number)
  if type(number) ~= "number" or number < 0 or number % 1 ~= 0 and number ~= math.huge then return nil end
  return math.min(number, COST_MAX)
end

-- nil: there are none or too many, or a cost is none, and so the question is bad.
local function named_tags(tags)
  if #tags < 1 or #tags > TAGS_MAX then return nil end
  local named = ffi.new("dthrottle_tag[?]", #tags)
  for i, tag in ipairs(tags) do
    local text, cost = tag, 1
    if type(tag) == "table" then text, cost = tag[1], cost_of(tag[2]) end
    if cost == nil then return nil end
    named[i - 1].text, named[i - 1].bytes, named[i - 1].cost = text, #text, cost
  end
  return named
end

-- Whole tokens of the tag at a place. nil: it was not told.
local function left_at(place, said, answer)
  if said.verdict ~= "serve" and place ~= said.refused then return nil end
  local left = tonumber(answer.left[place - 1])
  return left < 0 and math.huge or left
end

local function ask(self, verb, tags, deadline_ms, times)
  tags = list_of(tags)
  local named, answer = named_tags(tags), ffi.new("dthrottle_answer")
  if named == nil then return self:no_question() end
  local question = ffi.new("dthrottle_question", times)
  question.verb, question.tags, question.count = verb, named, #tags
  local said = self:decided(self.library.dthrottle_ask_question(self.questions, question, answer,
                                                                 deadline_ms or self.deadline_ms))
  said.reason = REASONS[answer.reason]
  said.refused = said.reason and tonumber(answer.refused) + 1
  said.rule = said.reason and ffi.string(answer.rule)
  said.wait_ms = tonumber(answer.wait_ms)
  said.delay_s = tonumber(answer.delay_us) / 1e6
  said.hold = answer.hold ~= 0 and answer.hold or nil
  said.left = {}
  for i = 1, #tags do said.left[i] = left_at(i, said, answer) end
  return said
end

-- Either every tag has what it costs and pays, or no tag pays. `tags` is a list of 1 to 16 tags that cost 1, or pairs of a
-- tag and its cost: { "user:alice", { "tenant:acme", 3 } }; or one tag. The answer says what is `left` of each tag,
-- math.huge where nothing limits it, and nil of all but the one that refuses; and of a refusal its `reason` ("limit",
-- "never", "shed", "busy"), the place of the tag that is `refused`, its `rule`, and after how many milliseconds the same
-- question may pass (`wait_ms`). A question that is none has an `error`; what the daemon says of a bad one is not told.
-- With `wait_ms` a question waits so long rather than being refused, under rules with `delay`: it is served, and the
-- caller goes on after `delay_s` seconds (ngx.sleep). Until then release(hold) gives its tokens back.
function Throttle:ask_question(tags, deadline_ms, wait_ms)
  return ask(self, TAKE, tags, deadline_ms, { wait_ms = wait_ms or 0 })
end

-- As ask_question for who wants only the verdict: where the daemon gives pages, this worker may decide by its own.
function Throttle:ask_all(tags, deadline_ms)
  tags = list_of(tags)
  local named, question = named_tags(tags), ffi.new("dthrottle_question")
  if named == nil then return self:no_question() end
  question.tags, question.count = named, #tags
  return self:decided(self.library.dthrottle_ask_question(self.questions, question, nil, deadline_ms or self.deadline_ms))
end

-- What ask_question would be told now. Nothing is spent.
function Throttle:peek(tags, deadline_ms)
  return ask(self, PEEK, tags, deadline_ms, {})
end

-- As ask_question, for as long as it takes to know what the tags cost in the end; `ttl_ms` after it all comes back that
-- nobody has settled. `hold` of the answer says what to settle; nil where nobody has held anything.
function Throttle:hold(tags, ttl_ms, deadline_ms)
  return ask(self, HOLD, tags, deadline_ms, { ttl_ms = ttl_ms })
end

-- Settles a hold: each of its tags has cost `actual`, a number, or a list of numbers for the tags in order. Less than was held
-- comes back, more is charged and may make debt. Only the first settlement counts, so a call that has failed may be
-- repeated. Returns the verdict: "serve", it is settled; "bad question", the daemon does not know it.
function Throttle:commit(hold, actual, deadline_ms)
  local costs = {}
  for i, cost in ipairs(type(actual) == "table" and actual or { actual }) do
    costs[i] = math.min(math.max(0, cost), COST_MAX)
  end
  return self:decided(self.library.dthrottle_commit(self.questions, hold or 0, ffi.new("uint32_t[?]", #costs, costs), #costs,
                                                    deadline_ms or self.deadline_ms)).verdict
end

-- Settles a hold of which nothing was used, or gives up a wait.
function Throttle:release(hold, deadline_ms)
  return self:decided(self.library.dthrottle_release(self.questions, hold or 0, deadline_ms or self.deadline_ms)).verdict
end

-- Gives back what turned out not to count; `tags` as for ask_question. Returns the verdict: "serve", it has come back. It may
-- come back twice where a call that failed is repeated.
function Throttle:refund(tags, deadline_ms)
  tags = list_of(tags)
  local named = named_tags(tags)
  if named == nil then return self:no_question().verdict end
  return self:decided(self.library.dthrottle_refund(self.questions, named, #tags,
                                                    deadline_ms or self.deadline_ms)).verdict
end

-- Reports how this application does with its host's part of a divided tag: a number above 0, at most 1e12, that falls
-- when the part grows, such as its mean response time. Once a second or so; a report counts for 10 s. Returns the
-- verdict: "serve", it is taken; "bad question", `value` is no such number, the daemon does not go by reports
-- (`capacity.indicator`), or it divides no such tag.
function Throttle:indicate(tag, value, deadline_ms)
  return self:decided(self.library.dthrottle_indicate(self.questions, tag, #tag, value,
                                                      deadline_ms or self.deadline_ms)).verdict
end

-- Asks what the rules of these tags, a list, want while nobody answers (`fail_closed`), and does so from now on in place of
-- `fail_open`. Returns the verdict: "serve", the daemon has said it; else nothing has changed.
function Throttle:learn(tags, deadline_ms)
  tags = list_of(tags)
  local named, refuse = named_tags(tags), ffi.new("int[1]")
  if named == nil then return self:no_question().verdict end
  local verdict = self.library.dthrottle_learn(self.questions, named, #tags, refuse, deadline_ms or self.deadline_ms)
  if verdict == SERVE then self.fail_open = refuse[0] == 0 end
  return self:decided(verdict).verdict
end

return { open = open }
