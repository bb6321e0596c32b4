-- What ask_lines.c does, with the Lua package: ask_lines.lua LIBRARY ADDRESS DEADLINE_MS [questions | by-page]
local folder = arg[0]:match("^(.*)/test/client/")
package.path = folder .. "/src/integration/lua/?.lua;" .. package.path

local ffi = require("ffi")
ffi.cdef [[
typedef struct { long seconds, nanoseconds; } ask_lines_time;
int clock_gettime(int clock, ask_lines_time* time);
]]

local REASONS = { limit = 1, never = 2, shed = 3, busy = 4 }

local function now_us()
  local time = ffi.new("ask_lines_time")
  ffi.C.clock_gettime(1, time)
  return tonumber(time.seconds) * 1e6 + tonumber(time.nanoseconds) / 1e3
end

local function tags_of(line)
  local tags = {}
  for cost, tag in line:gmatch("(%d+) (%S+)") do
    local text = tag:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
    tags[#tags + 1] = { text, tonumber(cost) }
  end
  return tags
end

local function said(answer, tags)
  local words = { REASONS[answer.reason] or 0, (answer.refused or 1) - 1, answer.wait_ms, answer.rule or "-" }
  for i = 1, #tags do
    words[#words + 1] = answer.left[i] == math.huge and -1 or answer.left[i] or 0
  end
  return "/" .. table.concat(words, " ")
end

local library, address, deadline_ms, mode = unpack(arg)
local throttle = require("dthrottle").open {
  library = library, query = address, questions = address, deadline_ms = tonumber(deadline_ms),
}
io.stdout:setvbuf("line")
local held = {} -- by their names: a hold is a number of 64 bits
for line in io.lines() do
  local verb, first, rest = line:match("^(%l+) (%S+) ?(.*)$")
  if verb == "learn" then
    local tags = {}
    for text in line:gmatch(" (%S+)") do
      tags[#tags + 1] = text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
    end
    print(throttle:learn(tags) .. "/0/" .. (throttle:ask("C", 0).serve and "serve" or "refuse"))
  elseif verb == "indicate" then
    local tag = rest:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
    print(throttle:indicate(tag, tonumber(first)) .. "/0/-")
  elseif verb == "one" then
    local tag = first:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
    local before, after = throttle:ask_question(tag), throttle:ask_question(tag)
    print(("%s/0/%d %d %d"):format(after.verdict, before.left[1], after.left[1], #throttle:ask_batch(tag)))
  elseif verb == "refund" then
    print(throttle:refund(tags_of(first .. " " .. rest)) .. "/0/-")
  elseif verb == "commit" or verb == "release" then
    local hold = held[first] or 0xffffffffULL
    print((verb == "commit" and throttle:commit(hold, tonumber(rest)) or throttle:release(hold)) .. "/0/-")
  elseif mode == "by-page" then
    local begin = now_us()
    print(("%s/%.0f"):format(throttle:ask_all(tags_of(line)).verdict, now_us() - begin))
  else
    local holds = verb == "hold"
    local tags = mode == "questions" and tags_of(holds and rest or line)
    local begin = now_us()
    local answer = holds and throttle:hold(tags, tonumber(first)) or tags and throttle:ask_question(tags) or throttle:ask(line)
    local name = answer.hold and tostring(answer.hold) or "-"
    held[name] = answer.hold
    print(("%s/%.0f%s%s"):format(answer.verdict, now_us() - begin, tags and said(answer, tags) or "",
                                 holds and " " .. name or ""))
  end
end
