-- Asks dthrottled from Apache with mod_lua and Debian's lua-socket; apache.conf beside it shows how to use it. It fails
-- open: no answer means serve.
local unix = require "socket.unix"
local gettime = require("socket").gettime

local SERVER = "/run/dthrottle/query.sock"
local TIMEOUT = 0.02                 -- seconds
local PAUSE_MIN, PAUSE_MAX = 0.01, 5 -- seconds without asking after a failure; it doubles

-- Of this thread.
local connection
local pause, retry_at = 0, 0

local function connect()
  local socket = unix()
  socket:settimeout(TIMEOUT)
  if socket:connect(SERVER) then return socket end
  socket:close()
end

-- The answer, or nil and whether it is worth another attempt: the connection that was kept may have ended meanwhile.
local function attempt(tag)
  local kept = connection ~= nil
  connection = connection or connect()
  if not connection then return nil end
  local answer, reason
  local sent, send_reason = connection:send(tag .. "\n")
  if sent then answer, reason = connection:receive("*l") else reason = send_reason end
  if answer == "OK" or answer == "NO" then return answer end
  connection:close() -- or a late answer would be taken for the next one
  connection = nil
  return nil, kept and reason ~= "timeout"
end

local function ask(tag)
  if gettime() < retry_at then return nil end
  local answer, again = attempt(tag)
  if again then answer = attempt(tag) end
  if answer then
    pause = 0
  else
    pause = math.min(math.max(2 * pause, PAUSE_MIN), PAUSE_MAX)
    retry_at = gettime() + pause
  end
  return answer
end

-- LuaHookAccessChecker calls this.
function check(r)
  if not r.is_initial_req then return apache2.DECLINED end
  local tag = "ip:" .. r.useragent_ip
  tag = tag:gsub("[\0-\32\127]", "_") -- a newline would be a second query
  if ask(tag) == "NO" then return 429 end
  return apache2.DECLINED
end
