-- Figures that must agree at one moment. ARGV: 1 to put the counts of kinds right, then kinds.
-- Returns the epoch; length of the log, its newest and its cut number, its bytes as counted, the numbers of its first
-- and last entry; then of each kind how many rows there are and how many were counted.

local epoch, generation, newest, start, log_bytes =
  unpack(call('HMGET', meta, 'epoch', 'generation', 'seq', 'start', 'logBytes'))
if not epoch then
  return {''}
end
of_generation(generation)
local log, kinds = prefix .. 'log', prefix .. 'kinds'

local function number_of(entries)
  return entries[1] and string.match(entries[1][1], '^%d+') or ''
end

local first, last = call('XRANGE', log, '-', '+', 'COUNT', 1), call('XREVRANGE', log, '+', '-', 'COUNT', 1)
local reply = {epoch, call('XLEN', log), newest, start, log_bytes, number_of(first), number_of(last)}
for place = 2, #ARGV do
  local kind = ARGV[place]
  local there, counted = call('HLEN', rows_key(kind)), tonumber(call('HGET', kinds, kind) or '0')
  reply[#reply + 1] = there
  reply[#reply + 1] = counted
  if ARGV[1] == '1' and there ~= counted then
    if there == 0 then
      call('HDEL', kinds, kind)
    else
      call('HSET', kinds, kind, there)
    end
  end
end
return reply
