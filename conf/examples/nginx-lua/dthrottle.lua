-- Asks dthrottled from nginx or OpenResty. Put it where lua_package_path finds it; nginx.conf beside it shows how to use
-- it. It fails open: nil is no answer, and means serve.
local M = {
  server = "unix:/run/dthrottle/query.sock",
  timeout_ms = 20,
  connections = 32, -- that each worker keeps
}

local PAUSE_MIN, PAUSE_MAX = 0.01, 5 -- seconds without asking after a failure; it doubles
local pause, retry_at = 0, 0         -- of this worker

local function failed()
  if ngx.now() < retry_at then return end -- together with another one
  pause = math.min(math.max(2 * pause, PAUSE_MIN), PAUSE_MAX)
  retry_at = ngx.now() + pause
end

-- The answer, or nil and whether it is worth another attempt: a connection from the pool may have ended meanwhile.
local function attempt(tag)
  local socket = ngx.socket.tcp()
  socket:settimeouts(M.timeout_ms, M.timeout_ms, M.timeout_ms)
  if not socket:connect(M.server) then return nil end
  local reused = socket:getreusedtimes() > 0
  local answer, reason
  if socket:send(tag .. "\n") then
    answer, reason = socket:receive("*l")
  else
    reason = "closed"
  end
  if answer == "OK" or answer == "NO" then -- only now nothing can come late
    socket:setkeepalive(60000, M.connections)
    return answer
  end
  socket:close()
  return nil, reused and reason == "closed"
end

-- "OK", "NO" or nil.
function M.ask(tag)
  if ngx.now() < retry_at then return nil end
  tag = tag:gsub("[%z\1-\32\127]", "_") -- a newline would be a second query
  local answer, again = attempt(tag)
  if again then answer = attempt(tag) end
  if answer then pause = 0 else failed() end
  return answer
end

-- For access_by_lua_block: refuses, or lets the request go on. Asks once for a request, not for what comes of it.
function M.access(tag)
  if ngx.is_subrequest or ngx.req.is_internal() then return end
  if M.ask(tag) == "NO" then return ngx.exit(429) end
end

return M
