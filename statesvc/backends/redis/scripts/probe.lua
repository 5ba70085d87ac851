-- Try commands on a key of its own. ARGV: 1 to try those that write too. Returns the names of those that were refused.

local key = meta .. ':probe'
local reading = {
  {'HMGET', key, 'x'}, {'HGET', key, 'x'}, {'HEXISTS', key, 'x'}, {'HKEYS', key}, {'HGETALL', key}, {'HLEN', key},
  {'HSCAN', key, '0'}, {'HRANDFIELD', key, '1'}, {'ZRANGE', key, '-', '+', 'BYLEX'}, {'ZCARD', key}, {'ZSCORE', key, 'x'},
  {'ZLEXCOUNT', key, '-', '+'}, {'XRANGE', key, '-', '+'}, {'XREVRANGE', key, '+', '-'}, {'XLEN', key},
  {'XREAD', 'STREAMS', key, '0'}, {'LINDEX', key, '0'}, {'LRANGE', key, '0', '0'}, {'LLEN', key}, {'EXISTS', key}, {'TIME'},
  {'INFO', 'server'},
}
local writing = {
  {'HSET', key, 'x', '1'}, {'HINCRBY', key, 'x', '1'}, {'HDEL', key, 'x'}, {'ZADD', key, '0', 'x'}, {'ZREM', key, 'x'},
  {'XADD', key, '1-0', 'x', '1'}, {'XTRIM', key, 'MINID', '=', '2'}, {'DEL', key}, {'RPUSH', key, 'x'},
  {'LTRIM', key, '0', '-1'}, {'LPOP', key}, {'UNLINK', key},
}
local refused = {}

local function try(commands)
  for _, command in ipairs(commands) do
    local reply = redis.pcall(unpack(command))
    if type(reply) == 'table' and reply.err then
      refused[#refused + 1] = command[1]
    end
  end
end

try(reading)
if ARGV[1] == '1' then
  try(writing)
end
return refused
