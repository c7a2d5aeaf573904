-- For wrk: the targets that are named after `--`, in turn; the figures as one line of JSON.
local requests = {}
local turn = 0

function init(args)
  for number, target in ipairs(args) do
    local body = string.format(
      '{"tx_id":"T-%d","target":"%s","op":"BALANCE","account":"110-234-567890","channel":"MOBILE"}', number, target)
    requests[number] = wrk.format("POST", "/tx", {["Content-Type"] = "application/json"}, body)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'FIGURES {"requests":%d,"seconds":%.6f,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50), latency:percentile(99)))
end
