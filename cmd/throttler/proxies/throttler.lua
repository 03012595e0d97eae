-- Asks throttler whether a request may pass. Sets txn.throttler_status to the status
-- that the client should get, or to "down", and txn.throttler_retry_after.
core.register_action("throttler", { "http-req" }, function(txn, url)
  local headers = txn.http:req_get_headers()
  local request = {}
  for name, values in pairs(headers) do
    request[name] = {}
    for _, value in pairs(values) do
      table.insert(request[name], value)
    end
  end
  -- What the client may have sent of these is replaced; the body is not sent.
  for _, name in pairs({ "content-length", "transfer-encoding", "connection", "expect", "upgrade", "host", "forwarded" }) do
    request[name] = nil
  end
  request["x-forwarded-for"] = { txn.sf:src() }
  request["x-forwarded-method"] = { txn.sf:method() }
  request["x-forwarded-uri"] = { txn.sf:pathq() }
  request["x-forwarded-host"] = { txn.sf:req_hdr("host") }

  local response = core.httpclient():get({ url = url, headers = request, timeout = 1000 })
  local answer = response and response.headers or {}
  local status = answer["x-throttler-status"]
  txn:set_var("txn.throttler_status", status and status[0] or "down")
  local retry = answer["retry-after"]
  txn:set_var("txn.throttler_retry_after", retry and retry[0] or "1")
end, 1)
