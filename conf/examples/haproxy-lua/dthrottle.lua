-- Asks dthrottled from HAProxy; haproxy.cfg beside it shows how to use it. Opens a connection for each request, which
-- small sites can afford. It fails open: without an answer txn.dthrottle is not set.
local SERVER = "unix@/run/dthrottle/query.sock"
local TIMEOUT = 0.02                 -- seconds
local PAUSE_MIN, PAUSE_MAX = 0.01, 5 -- seconds without asking after a failure; it doubles

local pause, retry_at = 0, 0 -- of this thread

local function now()
  local t = core.now()
  return t.sec + t.usec / 1e6
end

local function attempt(tag)
  local socket = core.tcp()
  socket:settimeout(TIMEOUT)
  local answer
  if socket:connect(SERVER) and socket:send(tag .. "\n") then answer = socket:receive("*l") end
  socket:close()
  if answer == "OK" or answer == "NO" then return answer end
end

core.register_action("dthrottle", { "http-req" }, function(txn)
  local tag = txn:get_var("txn.dthrottle_tag")
  if not tag or now() < retry_at then return end
  tag = tostring(tag):gsub("[\0-\32\127]", "_") -- a newline would be a second query
  local answer = attempt(tag)
  if answer then
    pause = 0
    txn:set_var("txn.dthrottle", answer)
  elseif now() >= retry_at then -- not together with another one
    pause = math.min(math.max(2 * pause, PAUSE_MIN), PAUSE_MAX)
    retry_at = now() + pause
  end
end)
