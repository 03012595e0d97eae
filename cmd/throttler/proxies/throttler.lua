-- Asks throttler whether a request may pass, and answers the client if not:
--
--   http-request lua.throttler http://127.0.0.1:4180/auth authorization,cookie,user-agent
--
-- The second argument lists the header fields that the rule file reads. Sets txn.throttler
-- to "passed", or to "down" if throttler does not answer. It is unset after an error.

local most = 16 -- fields that may be listed: HAProxy's client for HTTP takes about 100
local longest = 12000 -- bytes of their values and the URI: what a buffer of HAProxy holds
local longest_body = 8000 -- bytes of an answer: larger ones fit no buffer, and are left out
local pause = 2 -- seconds for which "down" is remembered: each try takes 3 to 4
local down_until = 0

-- values returns the values of a field as one.
local function values(field, name)
  local all = {}
  local i = 0
  while field[i] do
    table.insert(all, field[i])
    i = i + 1
  end
  return table.concat(all, name == "cookie" and "; " or ", ")
end

-- lines returns the lines of a field for throttler. Of several it takes none, so two are enough.
local function lines(field, name)
  if name == "cookie" or not field[1] then return { values(field, name) } end
  return { field[0], field[1] }
end

-- question returns the header fields for throttler, and their size.
local function question(txn, names)
  local sent = txn.http:req_get_headers()
  local fields = {
    ["x-forwarded-for"] = { txn.sf:src() },
    ["x-forwarded-method"] = { txn.sf:method() },
    ["x-forwarded-uri"] = { txn.sf:pathq() },
    ["x-forwarded-host"] = { txn.sf:req_hdr("host") },
    ["accept"] = { txn.sf:req_hdr("accept") },
  }
  local count, size = 0, #fields["x-forwarded-uri"][1]
  for name in string.gmatch(string.lower(names or ""), "[^,%s]+") do
    count = count + 1
    if count > most then error("more than " .. most .. " fields are listed") end
    if sent[name] and not fields[name] then
      fields[name] = lines(sent[name], name)
      for _, line in ipairs(fields[name]) do
        size = size + #name + #line
      end
    end
  end
  return fields, size
end

-- refuse ends the request with an answer.
local function refuse(txn, status, headers, body)
  local reply = txn:reply()
  reply:set_status(status)
  for _, name in pairs({ "content-type", "retry-after", "ratelimit", "ratelimit-policy", "cache-control" }) do
    if headers[name] then reply:add_header(name, values(headers[name], name)) end
  end
  if #body <= longest_body then reply:set_body(body) end
  txn:done(reply)
end

core.register_action("throttler", { "http-req" }, function(txn, url, names)
  local now = core.now().sec
  if now < down_until then
    txn:set_var("txn.throttler", "down")
    return
  end
  local fields, size = question(txn, names)
  if size > longest then
    return refuse(txn, 431, {}, "Request header fields too large.\n")
  end
  if down_until > 0 then -- only this request tries again
    down_until = now + pause + 4
  end
  local response = core.httpclient():get({ url = url, headers = fields, timeout = 1000 })
  local status = response.headers and response.headers["x-throttler-status"]
  if not status and response.status >= 502 then -- HAProxy's own answer
    down_until = core.now().sec + pause
    txn:set_var("txn.throttler", "down")
    return
  end
  down_until = 0
  if not status then
    return refuse(txn, response.status == 400 and 400 or 500, {}, "")
  end
  if status[0] ~= "200" then
    return refuse(txn, tonumber(status[0]), response.headers, response.body or "")
  end
  txn:set_var("txn.throttler", "passed")
end, 2)
