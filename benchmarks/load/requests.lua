-- What wrk sends. Arguments: kind, bytes of the body, path in front, token, prefix of the keys,
-- prefix of the seeded keys, how many keys are seeded.
--
-- fresh: a key and an entity that nobody saw. replay: a seeded command once more. stale: a new key
-- on a seeded entity, with a fence below its mark. reused: a seeded key with another body.
-- Keys are of one length, so that every request of a run is: the rest is written once.
-- small.py sends the same.

made_so_far = -1  -- wrk asks for one to look at first, and sends it to nobody

function init(args)
  kind, path, prefix, seeded_prefix = args[1], args[3], args[5], args[6]
  local size, seeded = tonumber(args[2]), tonumber(args[7])
  count = seeded
  local amount = kind == "reused" and "1300" or "1200"
  local open = '{"amount":' .. amount .. ',"currency":"eur","customer":"'
  local middle = '","note":"'
  local width = #(kind == "fresh" and prefix or seeded_prefix) + 9
  local note = string.rep("x", math.max(0, size - #open - width - #middle - 2))
  before_key = ' HTTP/1.1\r\nHost: ' .. wrk.host .. ':' .. wrk.port
    .. '\r\nContent-Type: application/json\r\nAuthorization: Bearer ' .. args[4]
    .. '\r\nX-Execution-Fence: ' .. (kind == "stale" and "6" or "7")
    .. '\r\nContent-Length: ' .. (#open + width + #middle + #note + 2)
    .. '\r\nIdempotency-Key: "'
  before_customer = '"\r\n\r\n' .. open
  after_customer = middle .. note .. '"}'
end

function request()
  made_so_far = made_so_far + 1
  local mine = prefix .. string.format("%09d", made_so_far)
  local seeded = kind ~= "fresh" and seeded_prefix .. string.format("%09d", (made_so_far - 1) % count + 1)
  local key = (kind == "fresh" or kind == "stale") and mine or seeded
  local customer = kind == "fresh" and mine or seeded
  return "POST " .. path .. "/v1/customers/" .. customer .. "/charges" .. before_key .. key
    .. before_customer .. customer .. after_customer
end

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function done(summary, latency)
  local issued = 0
  for _, thread in ipairs(threads) do issued = issued + thread:get("made_so_far") end
  local errors = summary.errors
  io.write(string.format(
    '{"issued":%d,"answered":%d,"refused":%d,"errors":%d,"seconds":%.6f,"p50_ms":%.4f,"p99_ms":%.4f}\n',
    issued, summary.requests, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
